"""Checks of the exercises, a module a notebook: each prints what is wrong in the learner's terms, or "Right: ..."."""
