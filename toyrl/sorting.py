"""The sorting task: a prompt of n numbers, a response of n numbers, and rewards for how sorted the response is.

Each reward exists twice. The plain version takes two lists and reads like its definition; the tensor version takes
prompts and responses of shape (..., n), which broadcast against each other, and returns float rewards of shape (...).
The two agree on every input (the tests check that), so a reader needs only the plain one.

    >>> import torch
    >>> positions_right(torch.tensor([3, 1, 0, 2]), torch.tensor([[0, 1, 2, 3], [7, 2, 2, 5]]))
    tensor([4., 1.])
"""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise, permutations, product
from math import perm

import torch
from torch import Tensor

PlainReward = Callable[[Sequence[int], Sequence[int]], float]
Reward = Callable[[Tensor, Tensor], Tensor]

DEFAULT_PROMPTS = torch.tensor([[1, 0, 2], [3, 2, 4], [1, 2, 3]])
"""The three prompts of the lecture: n = 3, numbers 0 to 4."""


def plain_sorted_or_not(prompt: Sequence[int], response: Sequence[int]) -> float:
    """Return 1 if the response is the sorted prompt, else 0."""
    return float(list(response) == sorted(prompt))


def plain_positions_right(prompt: Sequence[int], response: Sequence[int]) -> float:
    """Return the number of positions where the response equals the sorted prompt (0 to n)."""
    return float(sum(y == z for y, z in zip(response, sorted(prompt), strict=True)))


def plain_inclusion_and_order(prompt: Sequence[int], response: Sequence[int]) -> float:
    """Return one point a prompt token that is in the response, and one an adjacent pair in order (0 to 2n - 1)."""
    inclusion = sum(x in response for x in prompt)
    order = sum(a <= b for a, b in pairwise(response))
    return float(inclusion + order)


def sorted_or_not(prompts: Tensor, responses: Tensor) -> Tensor:
    """Return 1 where the response is the sorted prompt, else 0. Shapes (..., n), (..., n) -> (...)."""
    return (responses == _target(prompts)).all(dim=-1).float()


def positions_right(prompts: Tensor, responses: Tensor) -> Tensor:
    """Return how many positions equal the sorted prompt, 0 to n. Shapes (..., n), (..., n) -> (...)."""
    return positions_right_process(prompts, responses).sum(dim=-1)


def inclusion_and_order(prompts: Tensor, responses: Tensor) -> Tensor:
    """Return prompt tokens found in the response plus adjacent pairs in order, 0 to 2n - 1.

    Shapes (..., n), (..., n) -> (...). A number that is twice in the prompt counts twice, even when the response
    has it once: that is the loophole `toyrl.exact.loopholes` finds.
    """
    included = (prompts.unsqueeze(-1) == responses.unsqueeze(-2)).any(dim=-1).sum(dim=-1)
    ordered = (responses[..., :-1] <= responses[..., 1:]).sum(dim=-1)
    return (included + ordered).float()


def positions_right_process(prompts: Tensor, responses: Tensor) -> Tensor:
    """Return the process reward of `positions_right`: 1 at each position that is right. Shape (..., n).

    A reward with one value a position (rather than one a response) credits each token with its own effect;
    `toyrl.training.train` takes either kind.
    """
    return (responses == _target(prompts)).float()


REWARDS: dict[str, Reward] = {
    "sorted_or_not": sorted_or_not,
    "positions_right": positions_right,
    "inclusion_and_order": inclusion_and_order,
}
"""The lecture's three outcome rewards by name, tensor versions."""

PLAIN_REWARDS: dict[str, PlainReward] = {
    "sorted_or_not": plain_sorted_or_not,
    "positions_right": plain_positions_right,
    "inclusion_and_order": plain_inclusion_and_order,
}
"""The lecture's three outcome rewards by name, list versions."""


def get_reward(reward: str | Reward) -> Reward:
    """Return a tensor reward from its name, or the callable itself. Raises ValueError for an unknown name."""
    if callable(reward):
        return reward
    if reward not in REWARDS:
        raise ValueError(f"reward={reward!r} is unknown: use one of {sorted(REWARDS)} or a callable")
    return REWARDS[reward]


def from_plain(plain: PlainReward) -> Reward:
    """Make a tensor reward from a function of two lists, so that a reward can be written as plain Python.

    Each distinct (prompt, response) is computed once and remembered, so training on it stays fast.

        >>> first_right = from_plain(lambda prompt, response: float(response[0] == min(prompt)))
        >>> first_right(torch.tensor([1, 0, 2]), torch.tensor([[0, 0, 0], [1, 0, 2]]))
        tensor([1., 0.])
    """
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}

    def value(prompt: list[int], response: list[int]) -> float:
        key = (tuple(prompt), tuple(response))
        if key not in known:
            known[key] = float(plain(prompt, response))
        return known[key]

    def reward(prompts: Tensor, responses: Tensor) -> Tensor:
        shape = torch.broadcast_shapes(prompts.shape[:-1], responses.shape[:-1])
        rows = zip(
            prompts.expand(*shape, -1).reshape(-1, prompts.shape[-1]).tolist(),
            responses.expand(*shape, -1).reshape(-1, responses.shape[-1]).tolist(),
            strict=True,
        )
        return torch.tensor([value(prompt, response) for prompt, response in rows]).reshape(shape)

    return reward


def all_prompts(n: int, vocab: int, distinct: bool = False) -> Tensor:
    """Return every prompt of n numbers below vocab, in lexicographic order: (vocab^n, n), or (vocab!/(vocab-n)!, n).

    Raises ValueError where there is none (distinct numbers, n > vocab).
    """
    _check_size(n, vocab, distinct)
    rows = permutations(range(vocab), n) if distinct else product(range(vocab), repeat=n)
    return torch.tensor(list(rows))


def split_prompts(
    num_train: int, num_held_out: int, n: int = 3, vocab: int = 5, distinct: bool = True, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Draw training and held-out prompts, all different from each other: (num_train, n), (num_held_out, n).

    Raises ValueError where there are fewer prompts than asked for.
    """
    _check_size(n, vocab, distinct)
    total, wanted = perm(vocab, n) if distinct else vocab**n, num_train + num_held_out
    if wanted > total:
        raise ValueError(f"num_train + num_held_out = {wanted}, but n={n}, vocab={vocab} has {total} such prompts")
    rng = random.Random(seed)
    drawn: dict[tuple[int, ...], None] = {}
    while len(drawn) < wanted:
        row = rng.sample(range(vocab), n) if distinct else rng.choices(range(vocab), k=n)
        drawn[tuple(row)] = None
    prompts = torch.tensor(list(drawn)).reshape(wanted, n)
    return prompts[:num_train], prompts[num_train:]


def _target(prompts: Tensor) -> Tensor:
    return prompts.sort(dim=-1).values


def _check_size(n: int, vocab: int, distinct: bool) -> None:
    if n < 1 or vocab < 1:
        raise ValueError(f"n={n} and vocab={vocab} must be at least 1")
    if distinct and n > vocab:
        raise ValueError(f"n={n} distinct numbers do not fit below vocab={vocab}")
