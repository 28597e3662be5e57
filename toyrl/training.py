"""Training many seeds at once: outer epochs that sample, inner steps that learn from the samples.

An epoch (see `toyrl.epochs`): sample g responses a prompt, reward them, turn rewards into deltas, freeze the log-probs of
the policy that sampled (old) and of the reference. Then inner steps: log-probs of the same responses under the current
policy, loss, gradient, optimizer step. The loss is each seed's mean over prompts, samples and positions; their sum over
seeds is differentiated, and since no operation mixes seeds, every seed gets its own gradient.

    >>> run = train(Settings(epochs=2), seeds=4)
    >>> run.curves["p_sorted"].shape                    # (seeds, epochs + 1): at the start, and after every epoch
    torch.Size([4, 3])
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

from toyrl import exact
from toyrl.epochs import Epoch, epoch_loss, sample_epoch
from toyrl.optimizers import OPTIMIZERS, SGD, Adam
from toyrl.policy import Policy, entropy, init_policy, seed_generator, token_log_probs
from toyrl.settings import Settings

MAX_MEASURED = 10_000
"""The largest vocab^n at which the exact expectation of a reward callable, which is enumerated, is recorded every epoch."""

EPOCHS_PER_DRAW = 64
"""Uniform numbers are drawn for so many epochs at a time: few calls, little memory."""


@dataclass
class Run:
    """What training returns."""

    settings: Settings
    seeds: list[int]
    curves: dict[str, Tensor]
    """Column name -> (s, epochs + 1). Column e is the policy after e epochs, and the samples it then drew (last: NaN)."""
    policy: Policy
    """The trained policies, frozen."""

    def table(self) -> list[dict[str, float]]:
        """Return the learning curves as plain rows, one a seed and epoch."""
        columns = {name: values.tolist() for name, values in self.curves.items()}
        return [
            {"seed": seed, "epoch": e} | {name: values[s][e] for name, values in columns.items()}
            for s, seed in enumerate(self.seeds)
            for e in range(self.settings.epochs + 1)
        ]

    def final(self, column: str = "p_sorted") -> Tensor:
        """Return a column after the last epoch, (s,)."""
        return self.curves[column][:, -1]

    def solved(self, threshold: float = 0.9) -> Tensor:
        """Return which seeds end with at least this exact probability of the sorted response to every prompt: (s,) bool."""
        return self.final("p_sorted_min") >= threshold


def train(
    settings: Settings,
    seeds: int | Iterable[int] = 1,
    policy: Policy | None = None,
    held_out: Tensor | None = None,
    on_epoch: Callable[[Epoch, Policy], None] | None = None,
) -> Run:
    """Train every seed at once; a seed's result is the same whatever other seeds run beside it.

    seeds: the seeds, or how many (0, 1, ...). policy: where to start, one model a seed; by default `init_policy`.
    held_out: prompts (p', t) that are measured, never trained on: columns `held_out_p_sorted` and `held_out_reward`.
    on_epoch: called with the samples of each epoch and the policy that drew them, before it learns from them.

    Columns of the curves, means over prompts. Exact, of the policy: `p_sorted` (probability of the sorted response),
    `p_sorted_min` (of the worst prompt), `expected_reward` (NaN for a callable with more than MAX_MEASURED responses),
    `entropy` (nats a response), `kl_start` (KL(policy || policy at the start), nats a response). Of its samples: `reward`,
    `no_signal` (share of groups whose deltas are all 0), `loss` (mean over inner steps), `kl_drift` (exact KL(policy after
    the inner steps || policy that sampled), nats a response).
    """
    seeds = list(range(seeds) if isinstance(seeds, int) else seeds)
    if policy is None:
        policy = init_policy(seeds, settings.vocab, settings.n, settings.dim, settings.scale)
    if policy.num_seeds != len(seeds):
        raise ValueError(f"policy holds {policy.num_seeds} models; expected one a seed, {len(seeds)}")
    policy = policy.trainable()
    optimizer = OPTIMIZERS[settings.optimizer](policy.parameters(), settings.learning_rate)
    uniforms = _uniforms(seeds, settings)
    reference = policy.frozen()
    before = token_log_probs(policy, settings.prompts).detach()
    measure = _measure(before, settings, held_out)
    rows = [measure(policy, before)]
    for index in range(settings.epochs):
        if settings.kl_weight and settings.reference_every and index % settings.reference_every == 0:
            reference = policy.frozen()
        epoch = _sample(index, policy, before, reference, next(uniforms), settings)
        if on_epoch is not None:
            on_epoch(epoch, policy)
        loss = _learn(policy, epoch, optimizer, settings)
        after = token_log_probs(policy, settings.prompts).detach()
        rows[-1] |= _sample_columns(epoch) | {"loss": loss, "kl_drift": exact.kl(after, before).mean(dim=1)}
        rows.append(measure(policy, after))
        before = after
    return Run(settings, seeds, _stack(rows), policy.frozen())


def _sample(
    index: int, policy: Policy, log_probs: Tensor, reference: Policy, uniforms: Tensor, settings: Settings
) -> Epoch:
    with torch.no_grad():
        if settings.temperature != 1.0:
            log_probs = token_log_probs(policy, settings.prompts, settings.temperature)
        ref = token_log_probs(reference, settings.prompts, settings.temperature) if settings.kl_weight else None
        return sample_epoch(index, log_probs, uniforms, settings, ref)


def _learn(policy: Policy, epoch: Epoch, optimizer: Adam | SGD, settings: Settings) -> Tensor:
    """Take the inner steps; return each seed's loss, averaged over them, (s,)."""
    steps = []
    for _ in range(settings.inner_steps):
        total, tokens = epoch_loss(policy, epoch, settings)
        optimizer.step(torch.autograd.grad(total, policy.parameters()))
        steps.append(tokens)
    return rearrange(torch.stack(steps), "step s p g t -> s (step p g t)").mean(dim=1)


def _uniforms(seeds: list[int], settings: Settings) -> Iterator[Tensor]:
    """Yield the uniform numbers of each epoch, (s, p, g, t), every seed's from its own generator."""
    generators = [seed_generator(seed, stream=1) for seed in seeds]
    shape = (EPOCHS_PER_DRAW, len(settings.prompts), settings.responses, settings.n)
    while True:
        drawn = torch.stack([torch.rand(shape, generator=generator) for generator in generators])
        yield from drawn.unbind(dim=1)


def _measure(
    start: Tensor, settings: Settings, held_out: Tensor | None
) -> Callable[[Policy, Tensor], dict[str, Tensor]]:
    """Return the function that fills a row's exact columns, given the policy and its token log-probs (s, p, t, v)."""

    def measurable(prompts: Tensor) -> str | Tensor | None:
        if isinstance(settings.reward, str):
            return settings.reward
        small = settings.vocab**settings.n <= MAX_MEASURED
        return exact.reward_table(settings.reward, prompts, settings.vocab) if small else None

    def expectation(log_probs: Tensor, prompts: Tensor, reward: str | Tensor | None) -> Tensor:
        if reward is None:
            return torch.full_like(log_probs[:, 0, 0, 0], torch.nan)
        return exact.expected_reward(log_probs, prompts, reward).mean(dim=1)

    reward = measurable(settings.prompts)
    unseen_reward = None if held_out is None else measurable(held_out)

    @torch.no_grad()
    def measure(policy: Policy, log_probs: Tensor) -> dict[str, Tensor]:
        p_sorted = exact.sorted_probability(log_probs, settings.prompts)
        columns = {
            "p_sorted": p_sorted.mean(dim=1),
            "p_sorted_min": p_sorted.amin(dim=1),
            "expected_reward": expectation(log_probs, settings.prompts, reward),
            "entropy": entropy(log_probs).mean(dim=1),
            "kl_start": exact.kl(log_probs, start).mean(dim=1),
        }
        if held_out is not None:
            unseen = token_log_probs(policy, held_out)
            columns["held_out_p_sorted"] = exact.sorted_probability(unseen, held_out).mean(dim=1)
            columns["held_out_reward"] = expectation(unseen, held_out, unseen_reward)
        return columns

    return measure


def _sample_columns(epoch: Epoch) -> dict[str, Tensor]:
    silent = (epoch.deltas == 0).flatten(start_dim=2).all(dim=2)
    return {
        "reward": epoch.outcome_rewards.mean(dim=(1, 2)),
        "no_signal": silent.to(epoch.rewards.dtype).mean(dim=1),
    }


def _stack(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Rows of columns (s,) -> columns (s, epochs + 1); the last row has no samples, and gets NaN there."""
    names = rows[0] | rows[-1]
    missing = torch.full_like(rows[0]["p_sorted"], torch.nan)
    return {name: torch.stack([row.get(name, missing) for row in rows], dim=1) for name in names}
