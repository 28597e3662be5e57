"""Checks of notebook 08: a weight, a batch in which two normalizations disagree, a constant that is none.

Each check takes the learner's answer and prints one message. It raises for no answer, however wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from grpo.advantages import compute_group_normalized_rewards
from grpo.checks.judge import WrongAnswer, call, judged


def check_weight(my_weight: Callable[..., Any]) -> None:
    """Print whether a function of p is the weight of an estimator that divides by the variance, for large groups."""
    print(_weight(my_weight))


def check_disagreement(my_rewards: Any, my_lengths: Any, my_users: Any) -> None:
    """Print whether a group makes a habit less likely by "sequence" and more likely by "constant"."""
    print(_disagreement(my_rewards, my_lengths, my_users))


def check_share(my_share: Callable[..., Any]) -> None:
    """Print whether a function of (per-token loss, mask, constant) gives shares that add up to the loss of the batch."""
    print(_share(my_share))


_WEIGHTS: dict[str, Callable[[float], float]] = {
    "that of an estimator without a divisor": lambda p: 1.0,
    "GRPO's: the divisor is the standard deviation squared": lambda p: (p * (1 - p)) ** -0.5,
    "MaxRL's, which divides by the mean": lambda p: 1 / p,
    "the divisor, not 1 over it": lambda p: p * (1 - p),
    "with the square taken twice: the square of s is p (1 - p)": lambda p: (p * (1 - p)) ** -2,
    "1/p^2: the variance of a 0/1 reward is p (1 - p)": lambda p: p**-2,
    "of the wrong sign": lambda p: -1 / (p * (1 - p)),
}


@judged
def _weight(function: Callable[..., Any]) -> str:
    rates = (0.1, 0.3, 0.5, 0.8)
    found = [float(call(function, p, setting=f"p = {p}")) for p in rates]
    right = [1 / (p * (1 - p)) for p in rates]
    if _close(found, right):
        return "Right: 1 / (p (1 - p)), the slope of the log-odds. Very easy prompts count as much as very hard ones."
    for message, weight in _WEIGHTS.items():
        if _close(found, [weight(p) for p in rates]):
            raise WrongAnswer(f"Your weight is {message}.")
    raise WrongAnswer(f"At p = {rates[0]} you give {found[0]:.3f}; it should be {right[0]:.3f}.")


def _close(found: Sequence[float], other: Sequence[float]) -> bool:
    return all(abs(a - b) <= 1e-6 * max(1, abs(b)) for a, b in zip(found, other, strict=True))


def pushes(rewards: Sequence[float], lengths: Sequence[int], users: Sequence[bool]) -> tuple[float, float]:
    """Push on a token that each user holds once, by "sequence" and by "constant" (up to a positive factor)."""
    advantages, _ = compute_group_normalized_rewards(
        list(map(float, rewards)), len(rewards), advantage_normalizer="none"
    )
    uses, length = (torch.tensor(values, dtype=torch.float64) for values in (users, lengths))
    return (advantages * uses / length).sum().item(), (advantages * uses).sum().item()


def _disagreement(rewards: Any, lengths: Any, users: Any) -> str:
    try:
        n = len(rewards)
        if not n == len(lengths) == len(users) or n < 4:
            return f"Give three lists of equal length, 4 at least; yours have {n}, {len(lengths)} and {len(users)} entries."
        if any(reward not in (0, 1) for reward in rewards):
            return f"Rewards are 0 or 1; yours are {list(rewards)}."
        if any(isinstance(length, bool) or int(length) != length or length < 1 for length in lengths):
            return f"A length is a number of tokens, 1 at least; yours are {list(lengths)}."
        sequence, constant = pushes(rewards, lengths, [bool(user) for user in users])
    except (TypeError, ValueError) as error:
        return f"What you give cannot be read as three lists: {type(error).__name__}."
    if len(set(rewards)) == 1:
        return "All rewards are equal: every advantage is 0, and nothing is pushed at all."
    if not any(users):
        return "Nobody uses the habit: nothing pushes it."
    shown = f"By sequence the habit is pushed by {sequence:+.4f}, by constant by {constant:+.4f} (each up to a factor)"
    if sequence < -1e-12 and constant > 1e-12:
        return f"Right: {shown}. Same samples, same rewards, opposite lessons."
    if sequence > 1e-12 and constant < -1e-12:
        return f"{shown}: they disagree, the other way round. Swap long and short."
    if len(set(lengths)) == 1:
        return f"{shown}. All lengths are equal: then the two differ by a factor alone."
    return f"{shown}. Sequence should be negative and constant positive."


_SHARE_MISTAKES: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "the mean over the microbatch's rows: a row counts more in a small microbatch": lambda loss, mask, c: (
        (loss * mask).sum(1).mean() / c
    ),
    "divided by the microbatch's own response tokens: that is the token normalization, of a part": lambda loss, mask, c: (
        (loss * mask).sum() / mask.sum()
    ),
    "the sequence normalization": lambda loss, mask, c: ((loss * mask).sum(1) / mask.sum(1)).mean(),
    "the mean over all positions": lambda loss, mask, c: (loss * mask).mean(),
    "made with the padding in it: use the mask": lambda loss, mask, c: loss.sum() / c,
    "not divided by the constant": lambda loss, mask, c: (loss * mask).sum(),
}


@judged
def _share(function: Callable[..., Any]) -> str:
    generator = torch.Generator().manual_seed(8)
    loss = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    mask = torch.arange(6) < torch.tensor([[6], [1], [3], [4]])
    right = (loss * mask).sum() / 32
    for sizes in ((4,), (1, 3), (2, 2), (1, 1, 2)):
        parts = list(zip(loss.split(list(sizes)), mask.split(list(sizes)), strict=True))
        setting = f"4 rows as {' + '.join(map(str, sizes))}, constant 32"
        shares = [call(function, part.clone(), m.clone(), 32.0, setting=setting) for part, m in parts]
        found = float(sum(float(share) for share in shares))
        if abs(found - right.item()) < 1e-9:
            continue
        for message, wrong in _SHARE_MISTAKES.items():
            if abs(found - sum(wrong(part, m, 32.0).item() for part, m in parts)) < 1e-9:
                raise WrongAnswer(f"With {setting}: your share is {message}.")
        raise WrongAnswer(f"With {setting}: your shares add up to {found:.4f}; the loss of the batch is {right:.4f}.")
    return "Right: the shares add up to the same loss however the batch is cut."
