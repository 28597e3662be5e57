"""A batch of eight rollouts for the check of the training step, and its gradient computed token by token.

The loss of a batch is -sum of c log pi over response tokens. What is right is one set of the numbers c, a mistake another.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from grpo.checks.core_text import EOS

IDS = {"_": 0, "$": 1, "a": 3, "b": 4, "c": 5, "d": 6}
PROMPTS = ["ca"] * 4 + ["dcd"] * 4
OUTPUTS = ["d$", "bccd$", "c", "dd$", "$", "ada$", "cc$", "daddd"]
REWARDS = torch.tensor([2.0, 0.0, 0.0, 3.0, 2.0, 0.5, 0.0, 0.0], dtype=torch.float64)
GROUP = 4
TABLE = torch.sin(torch.arange(64.0, dtype=torch.float64) * 1.7).reshape(8, 8)

Coefficients = list[list[float]]
"""For each row, c of each label: prompt + output + padding, less the first token."""


def token_rows() -> list[list[int]]:
    """Return the ids of prompt + output of each rollout."""
    return [[IDS[token] for token in prompt + output] for prompt, output in zip(PROMPTS, OUTPUTS, strict=True)]


def group_advantages(rewards: Tensor = REWARDS, size: int = GROUP) -> list[float]:
    """Return (r - mu) / (s + eps) in groups of that size."""
    groups = rewards.view(-1, size)
    centered = groups - groups.mean(dim=1, keepdim=True)
    return (centered / (groups.std(dim=1, keepdim=True) + 1e-6)).reshape(-1).tolist()


def coefficients(
    advantages: Sequence[float] | None = None, divisor: float | None = None, first: int = 0, eos: bool = True
) -> Coefficients:
    """Return A over the response's length and N on each response label, 0 elsewhere.

    divisor: takes the place of length x N. first: where the mask starts, counted from the first response label; -9 takes
    the prompt in. eos=False: the mask leaves it out.
    """
    result = []
    for row, prompt, a in zip(token_rows(), PROMPTS, advantages or group_advantages(), strict=True):
        start = max(0, len(prompt) - 1 + first)
        counted = [t >= start and (eos or token != EOS) for t, token in enumerate(row[1:])]
        share = a / (divisor or max(1, sum(counted)) * len(PROMPTS))
        result.append([share * c for c in counted])
    return result


def label_log_probs(table: Tensor) -> list[Tensor]:
    """Return the log-probs of the labels of each row."""
    log_p = table.log_softmax(dim=-1)
    return [log_p[row[:-1], row[1:]] for row in token_rows()]


def batch_loss(coefficients: Coefficients, table: Tensor = TABLE) -> Tensor:
    """Return -sum of c log pi over all labels."""
    parts = [
        -(torch.tensor(row, dtype=torch.float64) * log_probs).sum()
        for row, log_probs in zip(coefficients, label_log_probs(table), strict=True)
    ]
    return torch.stack(parts).sum()


def gradient_of(coefficients: Coefficients, table: Tensor = TABLE) -> Tensor:
    """Return the gradient of that loss with respect to the table of logits."""
    table = table.clone().requires_grad_()
    return torch.autograd.grad(batch_loss(coefficients, table), table)[0]
