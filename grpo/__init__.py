"""grpo-lab: the shared GRPO core and the language-model pipeline."""
