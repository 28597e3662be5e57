"""One epoch of training, in two halves: sample and compare, then the loss of the samples under the current policy.

Advantages, losses and KL are `grpo`'s own, called with the seed, prompt and sample axes folded into rows. Axes as in
`toyrl.policy`: s seed, p prompt, g response, t position, v vocabulary entry.
"""

from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

from grpo.advantages import compute_group_normalized_rewards
from grpo.losses import aggregate_loss_across_microbatch, compute_kl, compute_policy_gradient_loss
from toyrl.policy import Policy, entropy, response_log_probs, sample_responses, token_log_probs
from toyrl.settings import DELTAS, LOSSES, Delta, Settings, Weight
from toyrl.sorting import get_reward


@dataclass
class Epoch:
    """The samples of one epoch, for all seeds. Shapes: s seeds, p prompts, g responses, t positions."""

    index: int
    """0 for the first."""
    responses: Tensor
    """(s, p, g, t), sampled."""
    rewards: Tensor
    """(s, p, g), or (s, p, g, t) for a process reward."""
    deltas: Tensor
    """Like `rewards`."""
    old_log_probs: Tensor
    """(s, p, g, t): the sampled tokens under the policy that sampled, frozen."""
    ref_log_probs: Tensor | None
    """(s, p, g, t) under the reference, frozen; None without a KL penalty."""

    @property
    def outcome_rewards(self) -> Tensor:
        """(s, p, g): a process reward summed over positions, an outcome reward as it is."""
        return self.rewards.sum(dim=-1) if self.rewards.ndim == self.responses.ndim else self.rewards


def compute_deltas(rewards: Tensor, delta: str | tuple | Delta) -> Tensor:
    """Turn the rewards of groups, (..., g), into deltas of the same shape, by `grpo`'s advantages."""
    g = rewards.shape[-1]
    if isinstance(delta, str):
        delta = DELTAS[delta]
    if callable(delta):
        deltas = delta(rewards.reshape(-1, g))
        if deltas.numel() != rewards.numel():
            raise ValueError(f"delta returned shape {tuple(deltas.shape)} for rewards {(rewards.numel() // g, g)}")
        return deltas.reshape(rewards.shape)
    baseline, normalizer = delta
    deltas, _ = compute_group_normalized_rewards(
        rewards.reshape(-1), group_size=g, baseline=baseline, advantage_normalizer=normalizer
    )
    return deltas.reshape(rewards.shape)


def token_loss(deltas: Tensor, log_probs: Tensor, old_log_probs: Tensor, settings: Settings) -> Tensor:
    """Return the loss of every token, (rows, t), by `grpo`'s losses or the settings' callable.

    deltas: (rows, 1), or (rows, t) for a process reward, where every position is a row of its own to the core.
    """
    t = log_probs.shape[-1]
    if deltas.shape[-1] != 1:
        deltas, log_probs, old = (rearrange(x, "n t -> (n t) 1") for x in (deltas, log_probs, old_log_probs))
        return rearrange(token_loss(deltas, log_probs, old, settings), "(n t) 1 -> n t", t=t)
    if callable(settings.loss):
        return settings.loss(deltas, log_probs, old_log_probs)
    loss, _ = compute_policy_gradient_loss(
        deltas, log_probs, LOSSES[settings.loss], old_log_probs, settings.cliprange, return_metadata=False
    )
    return loss


def sample_epoch(
    index: int, log_probs: Tensor, uniforms: Tensor, settings: Settings, ref_token_log_probs: Tensor | None = None
) -> Epoch:
    """Sample, reward and compare: the outer half of an epoch.

    log_probs: (s, p, t, v) at the settings' temperature. uniforms: (s, p, g, t). ref_token_log_probs: like log_probs.
    """
    responses = sample_responses(log_probs, uniforms)
    rewards = get_reward(settings.reward)(settings.prompts.unsqueeze(1), responses).to(log_probs.dtype)
    old = response_log_probs(log_probs, responses).detach()
    ref = None if ref_token_log_probs is None else response_log_probs(ref_token_log_probs, responses).detach()
    process = rewards.ndim == responses.ndim
    paid = rewards
    if ref is not None and settings.kl_in == "reward":
        penalty = settings.kl_weight * (old - ref)
        paid = rewards - (penalty if process else penalty.sum(dim=-1))
    if process:  # a group is then the g values of one position
        by_position = compute_deltas(rearrange(paid, "s p g t -> s p t g"), settings.delta)
        deltas = rearrange(by_position, "s p t g -> s p g t")
    else:
        deltas = compute_deltas(paid, settings.delta)
    deltas = deltas.movedim(2, 0).contiguous().movedim(0, 2)  # samples first in memory, like the responses
    return Epoch(index, responses, rewards, deltas, old, ref)


def epoch_loss(policy: Policy, epoch: Epoch, settings: Settings) -> tuple[Tensor, Tensor]:
    """Return the loss to differentiate, summed over seeds, and the tokens' policy losses, (s, p, g, t), detached.

    A seed's policy loss is the mean of its tokens' (without the KL penalty and the entropy bonus).
    """
    token_probs = token_log_probs(policy, settings.prompts, settings.temperature)
    s, p, g, t = epoch.responses.shape
    log_probs = _rows(response_log_probs(token_probs, epoch.responses))
    tokens = token_loss(_rows(epoch.deltas), log_probs, _rows(epoch.old_log_probs), settings)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    # All lengths are equal, so "constant" with a seed's own token count is its mean; summed, no seed sees the others.
    total = aggregate_loss_across_microbatch(tokens, mask, "constant", normalization_constant=p * g * t)
    if settings.kl_weight and settings.kl_in == "loss" and epoch.ref_log_probs is not None:
        penalty = compute_kl(log_probs, _rows(epoch.ref_log_probs), settings.kl_estimator)
        total = total + settings.kl_weight * aggregate_loss_across_microbatch(penalty, mask, "constant", p * g * t)
    weight = weight_at(settings.entropy_weight, epoch.index / max(settings.epochs, 1))
    if weight:
        total = total - weight * entropy(token_probs).sum() / (p * t)
    return total, rearrange(tokens.detach(), "(g s p) t -> s p g t", s=s, p=p)


def _rows(values: Tensor) -> Tensor:
    """Fold (s, p, g, t), or (s, p, g), into the core's rows, (g s p, t) or (g s p, 1)."""
    return values.movedim(2, 0).reshape(-1, values.shape[3] if values.ndim == 4 else 1)


def weight_at(weight: Weight, done: float) -> float:
    """Return a weight, constant or scheduled, when `done` (0 to 1) of the run is over."""
    return weight(done) if callable(weight) else weight
