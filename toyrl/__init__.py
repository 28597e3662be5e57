"""The lecture half of the course: sorting, bandits, exact enumeration, and training over many seeds at once.

    from toyrl import Settings, train, exact, bandits, plots
    run = train(Settings(reward="positions_right", delta="centered", scale=0.2), seeds=64)
    run.final("p_sorted"), run.solved()

`sorting` is the task and its rewards, `policy` the model, `settings` what a run is, `epochs` one epoch of it, `training`
the loop, `exact` and `estimators` the truth to compare with, `bandits` the smallest examples, `labs` what sliders compute,
`plots` how to look at many seeds. Advantages, losses, KL estimators and intervals are those of `grpo`.
"""

from grpo.intervals import describe, mean_interval
from toyrl import bandits, estimators, exact, labs, policy, sorting
from toyrl.epochs import Epoch, compute_deltas
from toyrl.policy import Policy, init_policy, token_log_probs
from toyrl.settings import DELTAS, LOSSES, RECIPE, Settings, linear_to_zero
from toyrl.sorting import DEFAULT_PROMPTS, REWARDS
from toyrl.training import Run, train

__all__ = [
    "DEFAULT_PROMPTS",
    "DELTAS",
    "LOSSES",
    "RECIPE",
    "REWARDS",
    "Epoch",
    "Policy",
    "Run",
    "Settings",
    "bandits",
    "compute_deltas",
    "describe",
    "estimators",
    "exact",
    "init_policy",
    "labs",
    "linear_to_zero",
    "mean_interval",
    "policy",
    "sorting",
    "token_log_probs",
    "train",
]
