"""The lecture's run with its settings on sliders: what the reward and delta lab computes, as a plain function."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from toyrl import exact
from toyrl.policy import token_log_probs
from toyrl.settings import Settings, linear_to_zero
from toyrl.sorting import DEFAULT_PROMPTS
from toyrl.training import Run, train

TRAINING_STEPS = 600
"""Optimizer steps of a run in the reward lab: 32 seeds then take about a second on one core."""
MOST_EPOCHS = 300
"""The most epochs of such a run; each samples and measures, which takes longer than an optimizer step."""


@dataclass
class Training:
    """What `compute_training` returns: a run over many seeds, ready to be drawn."""

    settings: Settings
    """What was trained."""
    steps: list[int]
    """Optimizer steps done, at each point of the curves."""
    curves: dict[str, Tensor]
    """p_sorted and expected_reward, both exact: (seeds, points)."""
    most: float
    """The largest expected reward that any policy can have."""
    greedy: list[tuple[list[int], list[tuple[list[int], int]]]]
    """For each prompt, each greedy response with the number of seeds that give it, the most frequent first."""


def compute_training(
    reward: str = "positions_right",
    delta: str = "centered",
    loss: str = "naive",
    cliprange: float = 0.2,
    inner_steps: int = 10,
    scale: float = 1.0,
    entropy_weight: float = 0.0,
    kl_weight: float = 0.0,
    seeds: int = 32,
    on_progress: Callable[[float], None] | None = None,
) -> Training:
    """Train the lecture's run with some settings changed: as many epochs as make TRAINING_STEPS, at most MOST_EPOCHS.

    entropy_weight: of a bonus that falls to 0 over the run. seeds: 2 or more. on_progress: called with the share done.
    Raises ValueError for fewer seeds, and for what `Settings` and the core refuse.
    """
    if seeds < 2:
        raise ValueError(f"seeds={seeds} must be at least 2; one run has no interval")
    for name, weight in (("entropy_weight", entropy_weight), ("kl_weight", kl_weight)):
        if not 0 <= weight < float("inf"):
            raise ValueError(f"{name}={weight} must be a finite number of at least 0")
    settings = Settings(
        reward=reward,
        delta=delta,
        loss=loss,
        cliprange=cliprange,
        inner_steps=inner_steps,
        scale=scale,
        entropy_weight=linear_to_zero(entropy_weight) if entropy_weight else 0.0,
        kl_weight=kl_weight,
        epochs=min(MOST_EPOCHS, TRAINING_STEPS // max(inner_steps, 1)),
    )
    run = _on_one_thread(
        lambda: train(settings, seeds, on_epoch=on_progress and (lambda e, _: on_progress(e.index / settings.epochs)))
    )
    table = exact.reward_table(reward, DEFAULT_PROMPTS, settings.vocab)
    responses = token_log_probs(run.policy, DEFAULT_PROMPTS).argmax(dim=-1)  # (seed, prompt, position)
    counts = [Counter(map(tuple, responses[:, p].tolist())) for p in range(len(DEFAULT_PROMPTS))]
    return Training(
        settings,
        [inner_steps * epoch for epoch in range(settings.epochs + 1)],
        {name: run.curves[name] for name in ("p_sorted", "expected_reward")},
        table.amax(dim=1).mean().item(),
        [
            (prompt, [(list(response), count) for response, count in counter.most_common()])
            for prompt, counter in zip(DEFAULT_PROMPTS.tolist(), counts, strict=True)
        ],
    )


def _on_one_thread(compute: Callable[[], Run]) -> Run:
    """These tensors are small: a second thread would only wait."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return compute()
    finally:
        torch.set_num_threads(before)
