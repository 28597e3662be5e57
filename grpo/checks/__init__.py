"""Checks of exercises: each says in the learner's terms what is wrong with an answer, or "Right"."""
