"""A batch of prompts whose success rates are known: what an estimator does to each prompt's gradient, exactly.

Where `toyrl.estimators` looks at one group on the sorting task, this looks at a batch of groups on the simplest task, since
baselines and normalizers may look at the whole batch, and since what matters to most of them is the success rate alone.
"""

import math
from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from grpo.advantages import RewardTransform, compute_group_normalized_rewards


def gradient_moments(
    baseline: str | RewardTransform,
    rates: Sequence[float],
    group_size: int,
    normalizer: str | RewardTransform = "none",
    tokens: int = 20,
) -> tuple[Tensor, Tensor]:
    """Exact mean and noise of each prompt's gradient estimate, over all outcomes of a batch, in float64.

    baseline, normalizer: as in `grpo.compute_group_normalized_rewards`, which makes the advantages.

    The toy: a response is one of `tokens` tokens, all equally likely, and a share `rates[j]` of them is right for prompt j.
    With advantages A the estimate is the group's mean of A grad log pi, with respect to the prompt's logits.

    Returns, each (prompts,): the weight, by which the expected estimate is a multiple of the gradient of the success rate
    (1: unbiased); and the noise, the expected squared distance of the estimate from its mean. The work grows as
    (group_size + 1)^prompts. `baseline` must treat the responses of a group alike, whatever their order.
    """
    p = torch.tensor(rates, dtype=torch.float64)
    prompts = len(p)
    weight, square = torch.zeros(prompts, dtype=torch.float64), torch.zeros(prompts, dtype=torch.float64)
    ways = torch.tensor([math.comb(group_size, k) for k in range(group_size + 1)], dtype=torch.float64)
    steps = torch.arange(group_size, dtype=torch.float64)
    for right in product(range(group_size + 1), repeat=prompts):
        k = torch.tensor(right, dtype=torch.float64)
        probability = (ways[list(right)] * p**k * (1 - p) ** (group_size - k)).prod()
        rewards = (steps < k[:, None]).double()
        advantages, _ = compute_group_normalized_rewards(
            rewards.flatten(), group_size, baseline, advantage_normalizer=normalizer
        )
        advantages = advantages.view(prompts, group_size)
        # Given its reward, the expected score of a response is grad p times this:
        sign = torch.where(rewards == 1, 1 / p[:, None], -1 / (1 - p[:, None]))
        pushed = (advantages * sign).mean(dim=1)
        weight += probability * pushed
        own = advantages.square().sum(dim=1) / group_size**2
        grad_squared = p * (1 - p) / tokens
        pairs = (pushed.square() - (advantages * sign).square().sum(dim=1) / group_size**2) * grad_squared
        square += probability * (own * (1 - 1 / tokens) + pairs)
    return weight, square - weight.square() * p * (1 - p) / tokens
