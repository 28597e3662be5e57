"""Mean and variance of a policy-gradient estimate: exactly, for any group estimator, and by repeated sampling.

One prompt's group gives the estimate

    ghat = (1/g) sum_i sum_t c_t(A_i, y_i) grad log p_t(y_it),      c_t = -d loss / d log p_t(y_it)

with y_1..y_g drawn independently from the policy that sampled. Given the rewards, the samples are still independent, and
the deltas A depend on the rewards alone. So it is enough to enumerate the responses of one sample (vocab^n) and how many
of the g samples earn each reward value (a few thousand cases), not the vocab^(n g) groups: the variance of a normalised,
clipped group of 10 comes out exactly.

Gradients are with respect to the logits, (t, v): for position t, grad log p_t(y) = onehot(y) - p_t. Sums over positions are
taken, not means, so the unbiased estimate has the gradient of the expected reward itself as its mean.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor

from toyrl.epochs import compute_deltas, epoch_loss, sample_epoch, token_loss
from toyrl.exact import all_response_log_probs, all_responses, flatten
from toyrl.policy import Policy, draw_uniforms, token_log_probs
from toyrl.settings import Settings

MAX_CASES = 4_000_000
"""The largest number of (delta, response) rows that `estimator_moments` works through."""


@dataclass
class Moments:
    """The exact mean and covariance of a gradient estimate with respect to the logits of one prompt."""

    mean: Tensor
    """(t, v): the expected estimate."""
    covariance: Tensor
    """(t v, t v)."""

    @property
    def variance(self) -> float:
        """The total variance, the trace of the covariance: the expected squared distance from the mean."""
        return self.covariance.trace().item()


def true_logit_gradient(log_probs: Tensor, rewards: Tensor) -> Tensor:
    """Return the gradient of the expected reward with respect to the logits: (t, v), rewards (y,) -> (t, v)."""
    logits = log_probs.detach().clone().requires_grad_()
    value = (all_response_log_probs(logits.log_softmax(dim=-1)).exp() * rewards.to(logits.dtype)).sum()
    return torch.autograd.grad(value, logits)[0]


def estimator_moments(
    log_probs: Tensor, rewards: Tensor, settings: Settings, old_log_probs: Tensor | None = None
) -> Moments:
    """Return the exact mean and covariance of one group's gradient estimate, for the settings' delta, loss and group size.

    log_probs: (t, v), the current policy's token log-probs for one prompt; old_log_probs: the policy's that sampled, by
    default the same. rewards: (y,), a row of `toyrl.exact.reward_table`. The probabilities must sum to 1, and nothing
    here normalises them: pass log-probs of a float32 policy as `log_probs.double().log_softmax(-1)`. A cast alone keeps
    their rounding, and leaves a bias of about 1e-6 of the gradient where there is none. Of the settings, delta,
    loss, cliprange and responses (g) are used. Raises ValueError for a delta that treats equal rewards of a group
    differently, and where there would be more than MAX_CASES cases.
    """
    old_log_probs = log_probs if old_log_probs is None else old_log_probs
    g = settings.responses
    values, which = rewards.to(log_probs.dtype).unique(return_inverse=True)
    probability = all_response_log_probs(old_log_probs).exp()
    mass = torch.zeros_like(values).index_add_(0, which, probability)
    counts = _counts(g, len(values))
    deltas = _deltas_by_value(counts, values, settings)
    weight = _multinomial(counts, mass)
    share = counts.to(values.dtype) / g

    # Each (reward value, delta) pair that occurs is worked out once, over the responses that earn that value.
    present = counts > 0
    value_index = torch.arange(len(values)).expand_as(counts)
    pairs, occurs = torch.stack([value_index[present].to(values.dtype), deltas[present]], dim=1).unique(
        dim=0, return_inverse=True
    )
    pair_of = torch.zeros_like(counts).masked_scatter_(present, occurs)
    pair, response = (pairs[:, :1].long() == which).nonzero(as_tuple=True)
    if len(pair) > MAX_CASES:
        raise ValueError(f"responses={g} with {len(values)} reward values makes {len(pair)} cases, above {MAX_CASES}")
    vectors = _gradient_rows(pairs[pair, 1], response, log_probs, old_log_probs, settings)
    conditional = (probability / mass[which])[response]
    pair_mean = torch.zeros(len(pairs), vectors.shape[1], dtype=values.dtype)
    pair_mean.index_add_(0, pair, conditional.unsqueeze(1) * vectors)

    case_mean = einsum(share, pair_mean[pair_of], "case value, case value f -> case f")
    mean = weight @ case_mean
    # Var = E[Var given the rewards] + Var[E given the rewards].
    pair_weight = torch.zeros(len(pairs), dtype=values.dtype)
    pair_weight.index_add_(0, pair_of.flatten(), (weight.unsqueeze(1) * share).flatten())
    within = vectors.T @ ((pair_weight[pair] * conditional).unsqueeze(1) * vectors)
    within = within - pair_mean.T @ (pair_weight.unsqueeze(1) * pair_mean)
    between = (case_mean - mean).T @ (weight.unsqueeze(1) * (case_mean - mean))
    return Moments(mean.reshape(log_probs.shape), within / g + between)


def sample_gradients(policy: Policy, settings: Settings, repeats: int, seed: int = 0) -> Tensor:
    """Return independent estimates of one model's gradient, (repeats, num_parameters), each from an epoch of fresh samples.

    policy: one model (one seed). The estimate is minus the gradient of the training loss times n, so that, like
    `exact.flatten(exact.policy_gradient(...))`, it sums over positions and averages over prompts. Entropy bonus and KL
    penalty in the loss are left out. Raises ValueError for a policy of several seeds.
    """
    if policy.num_seeds != 1:
        raise ValueError(f"policy holds {policy.num_seeds} models; expected 1 (see Policy.select)")
    stacked = policy.select([0] * repeats).trainable()
    plain = replace(settings, kl_weight=0.0, entropy_weight=0.0)
    p, n = settings.prompts.shape
    uniforms = draw_uniforms([seed], repeats, p, settings.responses, n)[0]
    with torch.no_grad():
        log_probs = token_log_probs(stacked, settings.prompts, settings.temperature)
        epoch = sample_epoch(0, log_probs, uniforms, plain)
    total, _ = epoch_loss(stacked, epoch, plain)
    gradient = torch.autograd.grad(total, stacked.parameters())
    return -n * flatten(Policy(*gradient))


def product_of_ratios(deltas: Tensor, log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """Return the loss with the whole response's ratio, prod_t w_t: unbiased however stale the samples, and wildly varying.

    A loss callable for `Settings(loss=...)`. Its sum over positions is -A prod_t w_t, whose gradient under samples of the
    old policy has the policy gradient as its mean (given fixed deltas).
    """
    t = log_probs.shape[1]
    return (-deltas * (log_probs - old_log_probs).sum(dim=1, keepdim=True).exp() / t).expand(-1, t)


def _gradient_rows(
    deltas: Tensor, response: Tensor, log_probs: Tensor, old_log_probs: Tensor, settings: Settings
) -> Tensor:
    """Return one sample's gradient with respect to the logits, (rows, t v), for given deltas and response indices."""
    n, vocab = log_probs.shape
    tokens = all_responses(n, vocab)[response]
    picked = log_probs[torch.arange(n), tokens].detach().requires_grad_()
    old = old_log_probs[torch.arange(n), tokens].detach()
    loss = token_loss(deltas.unsqueeze(1), picked, old, settings).sum()
    coefficients = -torch.autograd.grad(loss, picked)[0]
    scores = F.one_hot(tokens, vocab).to(log_probs.dtype) - log_probs.detach().exp()
    return rearrange(coefficients.unsqueeze(-1) * scores, "rows t v -> rows (t v)")


def _counts(total: int, kinds: int) -> Tensor:
    """Return every way to write `total` as an ordered sum of `kinds` numbers from 0 up: (ways, kinds)."""
    rows = torch.zeros(1, 0, dtype=torch.long)
    for _ in range(kinds - 1):
        left = total - rows.sum(dim=1)
        repeats = left + 1
        parents = torch.repeat_interleave(torch.arange(len(rows)), repeats)
        first = torch.repeat_interleave(repeats.cumsum(0) - repeats, repeats)
        rows = torch.cat([rows[parents], (torch.arange(len(parents)) - first).unsqueeze(1)], dim=1)
    return torch.cat([rows, (total - rows.sum(dim=1)).unsqueeze(1)], dim=1)


def _deltas_by_value(counts: Tensor, values: Tensor, settings: Settings) -> Tensor:
    """Return the delta of a sample by case and reward value, (cases, values); 0 where no sample has that value."""
    cases, kinds = counts.shape
    which = torch.repeat_interleave(torch.arange(kinds).repeat(cases), counts.flatten()).reshape(cases, -1)
    deltas = compute_deltas(values[which], settings.delta)
    by_value = torch.zeros(counts.shape, dtype=values.dtype).scatter_(1, which, deltas)
    if not torch.allclose(by_value.gather(1, which), deltas, rtol=1e-9, atol=1e-9):
        raise ValueError(f"delta={settings.delta!r} gives equal rewards of one group different deltas")
    return by_value


def _multinomial(counts: Tensor, mass: Tensor) -> Tensor:
    """Return the probability of each row of counts, (cases,)."""
    counts = counts.to(mass.dtype)
    total = counts.sum(dim=1)
    log_ways = torch.lgamma(total + 1) - torch.lgamma(counts + 1).sum(dim=1)
    return (log_ways + torch.xlogy(counts, mass).sum(dim=1)).exp()
