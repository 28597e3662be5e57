"""What sampling only estimates, computed exactly: expected rewards, gradients and divergences.

Two ways, and each function says which it takes. *Enumeration* visits all vocab^n responses (n = 3, vocab = 5: 125); it
works for any reward, and refuses more than `MAX_RESPONSES`. *Factorisation* uses that positions are independent and that
the lecture's rewards are sums (or one product) over positions; it works at any size.

Axes as in `toyrl.policy`: s seed, p prompt, t position, v vocabulary entry; y runs over all responses.
"""

from dataclasses import dataclass

import torch
from einops import einsum
from torch import Tensor

from toyrl.policy import Policy, token_log_probs
from toyrl.sorting import Reward, get_reward

MAX_RESPONSES = 2_000_000
"""The largest vocab^n that `all_responses` enumerates (n = 6, vocab = 10 is 1,000,000)."""


def all_responses(n: int, vocab: int) -> Tensor:
    """Return every response in lexicographic order, (vocab^n, n). Raises ValueError above MAX_RESPONSES."""
    if vocab**n > MAX_RESPONSES:
        raise ValueError(f"vocab={vocab}, n={n} has {vocab**n} responses; enumeration stops at {MAX_RESPONSES}")
    return torch.cartesian_prod(*[torch.arange(vocab)] * n).reshape(-1, n)


def reward_table(reward: str | Reward, prompts: Tensor, vocab: int) -> Tensor:
    """Return the reward of every response to every prompt, (p, y), by enumeration."""
    responses = all_responses(prompts.shape[1], vocab)
    function = get_reward(reward)
    return torch.stack([_outcome(function(prompt, responses), responses) for prompt in prompts])


def all_token_log_probs(log_probs: Tensor) -> Tensor:
    """Return the log-prob of each token of every response, from (..., t, v): (..., y, t), by enumeration.

    For n = 3 these are the 125 rows that the core's losses and KL estimators take; weighted with the responses'
    probabilities, what they return is an expectation.
    """
    n, vocab = log_probs.shape[-2:]
    responses = all_responses(n, vocab)
    return torch.stack([log_probs[..., t, :][..., responses[:, t]] for t in range(n)], dim=-1)


def all_response_log_probs(log_probs: Tensor) -> Tensor:
    """Return log pi(y | x) of every response, from token log-probs (..., t, v): (..., y), by enumeration."""
    return all_token_log_probs(log_probs).sum(dim=-1)


def expected_reward(log_probs: Tensor, prompts: Tensor, reward: str | Reward | Tensor) -> Tensor:
    """Return E[r | x], exact and differentiable: token log-probs (s, p, t, v), prompts (p, t) -> (s, p).

    The three rewards given by name factorise, at any size; a callable, or its `reward_table` (p, y), is enumerated.
    Maximise its mean over prompts and you have done reinforcement learning without sampling.
    """
    if isinstance(reward, str) and reward in _FACTORISED:
        return _FACTORISED[reward](log_probs, prompts)
    table = reward if isinstance(reward, Tensor) else reward_table(reward, prompts, log_probs.shape[-1])
    return einsum(all_response_log_probs(log_probs).exp(), table.to(log_probs.dtype), "s p y, p y -> s p")


def sorted_probability(log_probs: Tensor, prompts: Tensor) -> Tensor:
    """Return the probability of the sorted response, exact: (s, p, t, v), (p, t) -> (s, p). A product over positions."""
    return _target_log_probs(log_probs, prompts).sum(dim=-1).exp()


def kl(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """Return KL(pi || ref) of whole responses in nats, exact: two (..., t, v) -> (...). A sum over positions."""
    return (log_probs.exp() * (log_probs - ref_log_probs)).sum(dim=(-1, -2))


def policy_gradient(policy: Policy, prompts: Tensor, reward: str | Reward, temperature: float = 1.0) -> Policy:
    """Return the true gradient of each seed's expected reward, averaged over prompts, in the shape of a `Policy`.

    No sampling and no log-derivative trick: it differentiates `expected_reward` itself.
    """
    policy = policy.trainable()
    value = expected_reward(token_log_probs(policy, prompts, temperature), prompts, reward).mean(dim=1).sum()
    return Policy(*torch.autograd.grad(value, policy.parameters()))


def flatten(policy: Policy) -> Tensor:
    """Lay out each seed's parameters (or its gradient) as one vector: (s, num_parameters)."""
    return torch.cat([parameter.flatten(start_dim=1) for parameter in policy.parameters()], dim=1)


@dataclass
class Loophole:
    """A response that earns the maximum without being the sorted prompt."""

    prompt: list[int]
    response: list[int]
    reward: float


def loopholes(reward: str | Reward, prompts: Tensor, vocab: int) -> list[Loophole]:
    """Find, by enumeration, every response that earns its prompt's maximum and is not sorted; none is good news."""
    responses = all_responses(prompts.shape[1], vocab)
    found = []
    for prompt in prompts:
        rewards = reward_table(reward, prompt.unsqueeze(0), vocab)[0]
        best = rewards.max()
        unsorted = (responses != prompt.sort().values).any(dim=1)
        for response in responses[(rewards == best) & unsorted].tolist():
            found.append(Loophole(prompt.tolist(), response, best.item()))
    return found


def reward_distribution(
    reward: str | Reward, prompt: Tensor, vocab: int, log_probs: Tensor | None = None
) -> dict[float, float]:
    """Return {reward: probability} for one prompt (t,), under token log-probs (t, v), by default the uniform policy's."""
    n = len(prompt)
    if log_probs is None:
        log_probs = torch.zeros(n, vocab, dtype=torch.float64).log_softmax(dim=-1)
    rewards = reward_table(reward, prompt.unsqueeze(0), vocab)[0]
    values, which = rewards.unique(return_inverse=True)
    mass = torch.zeros(len(values), dtype=log_probs.dtype)
    mass.index_add_(0, which, all_response_log_probs(log_probs.detach()).exp())
    return dict(zip(values.tolist(), mass.tolist(), strict=True))


def landscape(reward: str | Reward, prompt: Tensor, response: Tensor, positions: tuple[int, int], vocab: int) -> Tensor:
    """Return the rewards around a response as a map, (v, v): two positions take every value, the others stay.

    Row i, column j is the reward with the first of `positions` set to i and the second to j.
    """
    first, second = positions
    if first == second:
        raise ValueError(f"positions={positions} must be two different positions")
    grid = response.expand(vocab, vocab, -1).clone()
    grid[..., first] = torch.arange(vocab).unsqueeze(1)
    grid[..., second] = torch.arange(vocab).unsqueeze(0)
    return _outcome(get_reward(reward)(prompt, grid), grid)


@dataclass
class Neighbour:
    """A response one token away, what changing to it gains, and the log-prob of its token at the changed position."""

    response: list[int]
    position: int
    gain: float
    token_log_prob: float


def neighbours(
    reward: str | Reward, prompt: Tensor, response: Tensor, vocab: int, log_probs: Tensor | None = None
) -> list[Neighbour]:
    """List all n (vocab - 1) responses that differ in one token, best gain first.

    prompt, response: (t,). log_probs: (t, v), where the new token's log-prob is read; by default the uniform policy's.
    """
    n = len(response)
    if log_probs is None:
        log_probs = torch.zeros(n, vocab, dtype=torch.float64).log_softmax(dim=-1)
    function = get_reward(reward)
    here = _outcome(function(prompt, response), response).item()
    changed = [(t, v) for t in range(n) for v in range(vocab) if v != response[t]]
    rows = response.repeat(len(changed), 1)
    for row, (t, v) in zip(rows, changed, strict=True):
        row[t] = v
    gains = (_outcome(function(prompt, rows), rows) - here).tolist()
    listed = [
        Neighbour(row.tolist(), t, gain, log_probs[t, v].item())
        for row, (t, v), gain in zip(rows, changed, gains, strict=True)
    ]
    return sorted(listed, key=lambda neighbour: -neighbour.gain)


def local_optima(reward: str | Reward, prompt: Tensor, vocab: int) -> Tensor:
    """Return the responses none of whose one-token changes earns more and that earn less than the maximum: (found, t).

    A policy concentrated on such a response has a gradient that points nowhere better.
    """
    n = len(prompt)
    rewards = reward_table(reward, prompt.unsqueeze(0), vocab)[0].reshape([vocab] * n)
    best_here = torch.stack([rewards.amax(dim=t, keepdim=True).expand_as(rewards) for t in range(n)]).amax(dim=0)
    stuck = (rewards >= best_here) & (rewards < rewards.max())
    return all_responses(n, vocab)[stuck.flatten()]


def _outcome(rewards: Tensor, responses: Tensor) -> Tensor:
    """Sum a process reward (one value a position) over positions; leave an outcome reward as it is."""
    return rewards.sum(dim=-1) if rewards.ndim == responses.ndim else rewards


def _target_log_probs(log_probs: Tensor, prompts: Tensor) -> Tensor:
    target = prompts.sort(dim=-1).values.expand(log_probs.shape[:-1])
    return log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1)


def _expected_sorted_or_not(log_probs: Tensor, prompts: Tensor) -> Tensor:
    return sorted_probability(log_probs, prompts)


def _expected_positions_right(log_probs: Tensor, prompts: Tensor) -> Tensor:
    return _target_log_probs(log_probs, prompts).exp().sum(dim=-1)


def _expected_inclusion_and_order(log_probs: Tensor, prompts: Tensor) -> Tensor:
    probs = log_probs.exp()
    absent = (1 - probs).prod(dim=-2)  # (s, p, v): no position says v
    tokens = prompts.expand(*log_probs.shape[:-2], -1)
    inclusion = (1 - absent.gather(-1, tokens)).sum(dim=-1)
    at_least = probs.flip(-1).cumsum(dim=-1).flip(-1)  # (s, p, t, v): P(token >= v)
    order = (probs[..., :-1, :] * at_least[..., 1:, :]).sum(dim=(-1, -2))
    return inclusion + order


_FACTORISED = {
    "sorted_or_not": _expected_sorted_or_not,
    "positions_right": _expected_positions_right,
    "inclusion_and_order": _expected_inclusion_and_order,
}
