"""The lecture half: sorting, bandits, exact enumeration."""
