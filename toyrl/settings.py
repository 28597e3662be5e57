"""What one training run is: its settings, and the names of the lecture's deltas and losses in the core's terms."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from torch import Tensor

from grpo.advantages import RewardTransform, max_rewards
from grpo.losses import KL_ESTIMATORS, ClipRange
from toyrl.optimizers import OPTIMIZERS
from toyrl.sorting import DEFAULT_PROMPTS, Reward, get_reward

Delta = Callable[[Tensor], Tensor]
"""Your own deltas: rewards (groups, g) -> deltas (groups, g)."""

TokenLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Your own loss: deltas (n, 1), log-probs (n, t), old log-probs (n, t) -> loss a token (n, t)."""

Weight = float | Callable[[float], float]
"""A weight, or a function of the share of the run that is done (0 at its start, below 1 at its end)."""

DELTAS: dict[str, tuple[str | RewardTransform, str]] = {
    "rewards": ("none", "none"),
    "centered": ("mean", "none"),
    "normalized": ("mean", "std"),
    "max": (max_rewards, "none"),
    "leave_one_out": ("leave_one_out", "none"),
}
"""The deltas by name, as (baseline, normalizer) of `grpo.advantages.compute_group_normalized_rewards`."""

LOSSES: dict[str, str] = {
    "naive": "none",
    "unclipped": "noclip",
    "clipped": "grpo",
    "gspo": "gspo",
    "cispo": "cispo",
}
"""The losses by name, as the importance reweighting method of `grpo.losses.compute_policy_gradient_loss`."""


@dataclass(frozen=True, eq=False)
class Settings:
    """One training run. The defaults are the lecture's standard run; `dataclasses.replace` changes some of them.

    Raises ValueError for an unknown name or a number out of range.
    """

    reward: str | Reward = "positions_right"
    """A name in `toyrl.sorting.REWARDS`, or a callable (prompts, responses) -> rewards, a response's or a position's."""
    delta: str | tuple[str | RewardTransform, str | RewardTransform] | Delta = "centered"
    """A name in DELTAS, a (baseline, normalizer) pair of the core, or a callable of the (groups, g) rewards."""
    loss: str | TokenLoss = "naive"
    """A name in LOSSES, or a callable (deltas, log-probs, old log-probs) -> loss a token."""
    cliprange: ClipRange = 0.2
    """The ratio is clipped to 1 - cliprange, 1 + cliprange (clipped, gspo, cispo), or to a (lower, upper) pair."""
    epochs: int = 100
    """Outer epochs: sample, reward, deltas, freeze the old log-probs."""
    inner_steps: int = 10
    """Optimizer steps on the samples of one epoch."""
    responses: int = 10
    """Responses sampled a prompt an epoch: the group size g."""
    learning_rate: float = 1e-3
    """Step size of the optimizer."""
    optimizer: str = "adam"
    """"adam" or "sgd"."""
    prompts: Tensor = field(default_factory=DEFAULT_PROMPTS.clone)
    """Training prompts, (p, t)."""
    vocab: int = 5
    """Number of vocabulary entries."""
    dim: int = 10
    """Width of the policy."""
    scale: float = 1.0
    """Standard deviation of the embedding at the start; 1.0 is the lecture's."""
    temperature: float = 1.0
    """Divides the logits in sampling and in the log-probs that are trained. Curves are of the policy at temperature 1."""
    kl_weight: float = 0.0
    """Weight of the KL penalty to the reference policy."""
    kl_estimator: str = "k3"
    """"k1", "k2" or "k3" of `grpo.losses.compute_kl`, for a penalty in the loss."""
    kl_in: str = "loss"
    """"loss", or "reward": weight times (log pi_old - log ref) is taken off the reward before the deltas."""
    reference_every: int = 10
    """The reference becomes the current policy every so many epochs; 0: it stays the initial policy."""
    entropy_weight: Weight = 0.0
    """Weight of the bonus for the mean entropy of a position, in nats."""

    def __post_init__(self) -> None:
        get_reward(self.reward)
        _choose("delta", self.delta, DELTAS)
        _choose("loss", self.loss, LOSSES)
        _choose("optimizer", self.optimizer, OPTIMIZERS)
        _choose("kl_estimator", self.kl_estimator, KL_ESTIMATORS)
        _choose("kl_in", self.kl_in, ("loss", "reward"))
        for name, least in (("epochs", 0), ("inner_steps", 1), ("responses", 1), ("vocab", 1), ("dim", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {least}")
        for name in ("learning_rate", "temperature", "scale"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be above 0")
        if self.prompts.ndim != 2 or self.prompts.min() < 0 or self.prompts.max() >= self.vocab:
            raise ValueError(
                f"prompts has shape {tuple(self.prompts.shape)} and tokens {self.prompts.min()} to {self.prompts.max()}; "
                f"expected (prompts, n) and tokens 0 to vocab - 1 = {self.vocab - 1}"
            )

    @property
    def n(self) -> int:
        """Length of a prompt, and of a response."""
        return self.prompts.shape[1]


def linear_to_zero(start: float) -> Callable[[float], float]:
    """Return a weight that falls from `start` to 0 in a straight line over the run."""
    return lambda done: start * (1 - done)


def _choose(argument: str, value: object, known: Collection[str]) -> None:
    if isinstance(value, str) and value not in known:
        raise ValueError(f"{argument}={value!r} is unknown: use one of {', '.join(known)}")


RECIPE = Settings(scale=0.2, responses=50, entropy_weight=linear_to_zero(0.4))
"""Settings under which practically every seed sorts, with each of the three rewards, in the lecture's number of steps.

The small scale starts the policy near uniform, so that no response is ruled out; 50 responses make the sparse reward
(1 in 125) likely to be seen; the entropy bonus keeps the policy moving on the plateaus of `inclusion_and_order`, where no
single change of a token earns more, and must fade, or the policy stays undecided.
"""
