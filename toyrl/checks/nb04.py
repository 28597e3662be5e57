"""Checks of notebook 04's exercises. Each prints one message, which starts with "Right" when the answer is right."""

from collections.abc import Callable, Mapping
from functools import cache

import torch
from torch import Tensor

from grpo.intervals import describe
from toyrl.epochs import compute_deltas
from toyrl.settings import Settings
from toyrl.sorting import DEFAULT_PROMPTS, positions_right
from toyrl.training import train

CHOICES = ("better", "same", "worse")
"""What may be predicted."""

SHIFT = 10.0
"""What exercise 1 adds to every reward."""

SEEDS = 16
"""Seeds that the checks train."""

MAX_RESPONSES, MAX_STEPS, MIN_SOLVED = 50_000, 1_000, 15
"""Exercise 2: responses a prompt, optimizer steps, and the seeds of SEEDS that must be solved."""


def check_prediction(answer: Mapping[str, str | None]) -> None:
    """Check {"rewards": ..., "centered": ...}: what adding 10 to every reward does to each delta. Prints one message."""
    print(_prediction_message(answer))


def check_sparse(answer: Callable[[], Settings | None]) -> None:
    """Check `answer()`, settings that solve sorted_or_not; trains 16 seeds of them. Prints one message."""
    print(_sparse_message(answer))


def check_delta(answer: Callable[[Tensor], Tensor | None]) -> None:
    """Check `answer(rewards)`, new deltas of the (groups, g) rewards; trains 16 seeds of it. Prints one message."""
    print(_delta_message(answer))


def _prediction_message(answer: object) -> str:
    if not isinstance(answer, Mapping):
        return f'Not yet: prediction should be a dict like {{"rewards": "same", "centered": "same"}}, not {answer!r}.'
    missing = [name for name in ("rewards", "centered") if answer.get(name) is None]
    if missing:
        return f"Not done yet: write your prediction for {' and for '.join(missing)}."
    for name in ("rewards", "centered"):
        if answer[name] not in CHOICES:
            return f"Not yet: prediction[{name!r}] is {answer[name]!r}; use one of {', '.join(CHOICES)}."
    seen = {delta: " -> ".join(describe(shifted_run(delta, shift)) for shift in (0.0, SHIFT)) for delta in answer}
    if answer["rewards"] != "worse":
        return (
            f"Not quite: with delta rewards the final probability went {seen['rewards']}. Every sampled response is now "
            "pushed up by 10 and a little, whatever it earned. Which response wins then?"
        )
    if answer["centered"] != "same":
        return (
            f"Not quite: with delta centered the final probability went {seen['centered']}. "
            "What becomes of the 10 in r - mu, when every reward of the group has it?"
        )
    return (
        f"Right: adding {SHIFT:g} to every reward, the final probability went {seen['rewards']} with rewards, and "
        f"{seen['centered']} with centered ({SEEDS} seeds)."
    )


@cache
def shifted_run(delta: str, shift: float) -> Tensor:
    """Return the final probability of the sorted response with `shift` added to positions_right, scale 0.2: (seeds,)."""
    settings = Settings(
        reward=lambda prompts, responses: positions_right(prompts, responses) + shift, delta=delta, scale=0.2
    )
    return train(settings, seeds=SEEDS).final("p_sorted")


def _sparse_message(answer: Callable[[], object]) -> str:
    try:
        settings = answer()
    except Exception as error:
        return f"Not yet: my_settings() raised {type(error).__name__}: {error}"
    if settings is None:
        return "Not done yet: return a Settings(...)."
    if not isinstance(settings, Settings):
        return f"Not yet: my_settings() returned {settings!r}; return a Settings(...)."
    if settings.reward != "sorted_or_not":
        return f'Not yet: the reward is {settings.reward!r}; the exercise is about reward="sorted_or_not".'
    if not torch.equal(settings.prompts, DEFAULT_PROMPTS) or settings.vocab != 5:
        return "Not yet: keep the default prompts and vocab=5; an easier task would prove nothing."
    responses, steps = settings.epochs * settings.responses, settings.epochs * settings.inner_steps
    if responses > MAX_RESPONSES:
        return (
            f"Over budget: {settings.epochs} epochs of {settings.responses} responses are {responses:,} a prompt; "
            f"{MAX_RESPONSES:,} are allowed."
        )
    if steps > MAX_STEPS:
        return (
            f"Over budget: {settings.epochs} epochs of {settings.inner_steps} inner steps are {steps:,} optimizer "
            f"steps; {MAX_STEPS:,} are allowed."
        )
    run = train(settings, seeds=SEEDS)
    solved = int(run.solved().sum())
    if solved >= MIN_SOLVED:
        return f"Right: {solved} of {SEEDS} seeds end with at least 0.9 for every prompt, {responses:,} responses a prompt."
    before, after = (run.curves["entropy"][:, k].mean().item() for k in (0, -1))
    told = f"Not yet: {solved} of {SEEDS} seeds are solved, {MIN_SOLVED} are needed. "
    if before < 4:
        return told + (
            f"The policy starts with an entropy of {before:.1f} nats of 4.8: many a sorted response is ruled out before "
            "anything is learned. Look at the scale."
        )
    weight = settings.entropy_weight
    last = weight((settings.epochs - 1) / max(settings.epochs, 1)) if callable(weight) else weight
    if last > 0.05:
        return told + (
            f"The bonus still has the weight {last:g} at the end, and the policy an entropy of {after:.1f} nats: it is "
            "paid for staying undecided. Let the bonus fade, or be smaller."
        )
    silent = run.curves["no_signal"][:, :-1].mean().item()
    return told + (
        f"The start is good, but {silent:.0%} of the groups had no signal: the one response in 125 was seldom seen, or the "
        "policy froze before it was. Sample more responses, or keep it moving with a bonus that fades."
    )


OURS = ("centered", "normalized", "max", "leave_one_out")
"""Deltas that are there already."""


def _delta_message(answer: Callable[[Tensor], object]) -> str:
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randint(0, 4, (40, 10), generator=generator).float()
    rewards[::8] = rewards[::8, :1]  # some groups of equal rewards
    deltas, problem = _deltas(answer, rewards)
    if problem or deltas is None:
        return problem
    equal = (rewards == rewards[:, :1]).all(dim=1)
    for group, given in zip(rewards[equal], deltas[equal], strict=True):
        alone, _ = _deltas(answer, group.unsqueeze(0))
        if alone is not None and alone.abs().max() > 1e-4:
            return (
                f"Not yet: in a group whose rewards are all {group[0]:.0f} the first gets {given[0]:.2f}; nothing "
                "in it is better than anything else, so every delta must be 0."
            )
    if deltas[equal].abs().max() > 1e-4:
        return (
            "Not yet: a group whose rewards are all equal gets deltas that are not 0 when other groups are beside it. "
            "You average over all groups: use dim=1, keepdim=True."
        )
    shifted, _ = _deltas(answer, rewards + 10)
    if shifted is None or not torch.allclose(shifted, deltas, atol=1e-3):
        return "Not yet: adding 10 to every reward changes your deltas. Use differences between rewards only."
    order = torch.randperm(10, generator=generator)
    permuted, _ = _deltas(answer, rewards[:, order])
    alone, _ = _deltas(answer, rewards[1:2])
    if permuted is None or not torch.allclose(permuted, deltas[:, order], atol=1e-4):
        return "Not yet: your deltas depend on the order of the responses in a group, or on chance."
    if alone is None or not torch.allclose(alone, deltas[1:2], atol=1e-4):
        return "Not yet: the deltas of one group change with the groups beside it. Compute along dim=1 only."
    better = rewards.unsqueeze(2) > rewards.unsqueeze(1)
    if (better & (deltas.unsqueeze(2) < deltas.unsqueeze(1) - 1e-4)).any():
        return "Not yet: in some group a better response gets a smaller delta than a worse one. Is a sign turned round?"
    if deltas.abs().max() < 1e-4:
        return "Not yet: every delta is 0, so nothing is learned."
    for name in OURS:
        if _proportional(deltas, compute_deltas(rewards, name)):
            return f"Not yet: that is our {name!r}, up to a factor. Change one thing about it."
    own = train(Settings(delta=answer, scale=0.2), seeds=SEEDS).final("p_sorted")  # type: ignore[arg-type]
    ours = train(Settings(delta="centered", scale=0.2), seeds=SEEDS).final("p_sorted")
    return (
        "Right: your delta has all four properties and is new here. Final probability with positions_right at scale 0.2, "
        f"{SEEDS} seeds: yours {describe(own)}, centered {describe(ours)}, difference {describe(own - ours)}."
    )


def _deltas(answer: Callable[[Tensor], object], rewards: Tensor) -> tuple[Tensor | None, str]:
    """Return the learner's deltas, or None and what is wrong with them."""
    try:
        deltas = answer(rewards.clone())
    except Exception as error:
        return None, f"Not yet: my_delta raised {type(error).__name__}: {error}"
    if deltas is None or deltas is ...:
        return None, "Not done yet: return a tensor of deltas, one a reward."
    if not isinstance(deltas, Tensor) or deltas.shape != rewards.shape:
        shape = tuple(deltas.shape) if isinstance(deltas, Tensor) else type(deltas).__name__
        return (
            None,
            f"Not yet: for rewards of shape {tuple(rewards.shape)} you return {shape}; give every reward a delta.",
        )
    if not torch.isfinite(deltas).all():
        return None, (
            "Not yet: some deltas are not finite. A group of equal rewards has the standard deviation 0: "
            "do not divide by it."
        )
    return deltas.float(), ""


def _proportional(first: Tensor, second: Tensor) -> bool:
    """Whether first = factor x second for one positive factor."""
    factor = (first * second).sum() / second.square().sum()
    return bool(factor > 0 and torch.allclose(first, factor * second, atol=1e-3))
