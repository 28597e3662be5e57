"""Core check of the training step: plain SGD at rate 1 on a table of logits, so that the move is the gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from grpo.checks.core_batch import (
    GROUP,
    OUTPUTS,
    PROMPTS,
    REWARDS,
    TABLE,
    batch_loss,
    coefficients,
    gradient_of,
    group_advantages,
    label_log_probs,
    token_rows,
)
from grpo.checks.core_log_probs import Bigram
from grpo.checks.core_text import small_tokenizer
from grpo.checks.judge import WrongAnswer, call, expect, judged, same, value_and_metadata

NO_CLIPPING = 1e9


@judged
def check_grpo_train_step(function: Callable[..., Any]) -> str:
    """One microbatch, several, clipping, two steps in a row, old log-probs, the other settings."""
    whole = _step(function, 1)
    right = gradient_of(coefficients())
    _check_move(whole, right, _one_batch_mistakes(), "one microbatch")
    loss = batch_loss(coefficients())
    for steps in (1, 2, 4):
        moved = whole if steps == 1 else _step(function, steps)
        setting = f"gradient_accumulation_steps={steps}"
        _check_move(moved, right, _accumulation_mistakes(steps), setting)
        _check_loss(moved.loss, loss, steps)
    _check_clipping(function, right)
    _check_twice(function, right)
    _check_old_log_probs(function)
    _check_settings(function)
    return "Right: the step moves along the batch's gradient, clipped, once, in however many microbatches."


class _Moved:
    """What a learner's step did: by how much the table fell, the optimizer's steps, and the loss that came back."""

    def __init__(self, model: Bigram, before: Tensor, steps: int, loss: Any) -> None:
        self.by = before - model.table.detach()
        self.steps = steps
        self.loss = loss


class _CountingSGD(torch.optim.SGD):
    steps = 0

    def step(self, *args: Any, **kwargs: Any) -> Any:
        self.steps += 1
        return super().step(*args, **kwargs)


def _reward_fn(response: str, ground_truth: str) -> dict[str, float]:
    return {"reward": float(ground_truth), "format_reward": 1.0, "answer_reward": float(ground_truth == "1.0")}


def _step(
    function: Callable[..., Any],
    steps: int,
    max_grad_norm: float | None = NO_CLIPPING,
    model: Bigram | None = None,
    setting: str = "",
    **settings: Any,
) -> _Moved:
    model = Bigram(TABLE) if model is None else model
    optimizer = _CountingSGD(model.parameters(), lr=1.0)
    before = model.table.detach().clone()
    truths = [str(reward) for reward in REWARDS.tolist()]
    setting = setting or f"gradient_accumulation_steps={steps}"
    arguments = (model, small_tokenizer(), optimizer, steps, max_grad_norm, _reward_fn, list(PROMPTS), list(OUTPUTS))
    result = call(function, *arguments, truths, GROUP, setting=setting, **settings)
    loss = value_and_metadata(result, "loss")
    if optimizer.steps == 0:
        raise WrongAnswer("optimizer step missed: gradients may be right, but optimizer.step() is never called.")
    if optimizer.steps > 1:
        raise WrongAnswer(
            f"With {setting}: optimizer.step() is called {optimizer.steps} times. Add up the gradients of all "
            "microbatches, then step once."
        )
    return _Moved(model, before, optimizer.steps, loss)


def _one_batch_mistakes() -> list[tuple[Tensor, str]]:
    centered = REWARDS.view(-1, GROUP) - REWARDS.view(-1, GROUP).mean(dim=1, keepdim=True)
    tokens = sum(map(len, OUTPUTS))
    batch = ((REWARDS - REWARDS.mean()) / REWARDS.std()).tolist()
    widest = max(map(len, token_rows())) - 1
    candidates = [
        (coefficients(REWARDS.tolist()), "raw rewards are used in the place of advantages: there is no baseline."),
        (coefficients(batch), "mean and std over the batch instead of the group."),
        (coefficients((centered / REWARDS.std()).reshape(-1).tolist()), "std over the batch instead of the group."),
        (coefficients(centered.reshape(-1).tolist()), "the advantages are not divided by the group's std."),
        (
            coefficients(divisor=tokens),
            "mean over all tokens instead of per sequence: average each row, then the rows.",
        ),
        (coefficients(divisor=8 * widest), "padding is counted: divide each row by its own response's length."),
        (coefficients(divisor=8), "rows are summed over their tokens: divide each by its length."),
        (coefficients(divisor=1), "the loss is a sum over all tokens: average over a row's tokens, then over rows."),
        (coefficients(first=-9), "prompt tokens are trained on: mask them."),
        (coefficients(first=1), "mask off by one: the first token of each response is not trained on."),
        (coefficients(first=-1), "mask off by one: the last prompt token is trained on."),
        (coefficients(eos=False), "the eos is lost: the end of a response is trained on like any other token."),
    ]
    return [(gradient_of(c), message) for c, message in candidates]


def _accumulation_mistakes(steps: int) -> list[tuple[Tensor, str]]:
    right, size = gradient_of(coefficients()), len(PROMPTS) // steps
    only = [[c * (i >= len(PROMPTS) - size) for c in row] for i, row in enumerate(coefficients())]
    not_divided = "gradient accumulation is not divided: each microbatch's mean counts in full, so the move is"
    mistakes = [
        (right * steps, f"{not_divided} {steps} times too long. Divide each loss by the number of microbatches."),
        (right / steps, f"the loss is divided by {steps} twice: the move is {steps} times too short."),
        (gradient_of(only), "only the last microbatch counts: zero the gradients before the loop, not in it."),
        (gradient_of(only) * steps, "only the last microbatch counts: zero the gradients before the loop, not in it."),
        (
            gradient_of([row if i < size else [0.0] * len(row) for i, row in enumerate(coefficients())]),
            "only the first microbatch counts.",
        ),
    ]
    if size not in {1, GROUP}:
        per_microbatch = coefficients(group_advantages(size=size))
        message = "advantages are computed in each microbatch: take whole groups, before the batch is cut."
        mistakes += [(gradient_of(per_microbatch), message)]
    token_means = []
    for i, row in enumerate(coefficients(divisor=1)):
        start = i - i % size
        tokens = sum(map(len, OUTPUTS[start : start + size]))
        token_means.append([c / tokens / steps for c in row])
    return [
        *mistakes,
        (gradient_of(token_means), "each microbatch is averaged over its own tokens: average per sequence."),
    ]


def _check_move(moved: _Moved, right: Tensor, mistakes: list[tuple[Tensor, str]], setting: str) -> None:
    if same(moved.by, torch.zeros_like(moved.by)):
        raise WrongAnswer(
            f"With {setting}: optimizer.step() is called and nothing moves. Is backward() called, and before it? Are the "
            "gradients zeroed too early, or the advantages all 0?"
        )
    if same(moved.by, -right):
        raise WrongAnswer(f"With {setting}: wrong sign of the loss: the step goes away from what was rewarded.")
    expect(moved.by, right, mistakes, "the gradient of the table of logits", setting)


def _check_loss(loss: Any, right: Tensor, steps: int) -> None:
    try:
        found = torch.tensor(float(loss), dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise WrongAnswer(f"The loss you return is a {type(loss).__name__}; expected one number.") from None
    mistakes = [
        (
            right * steps,
            "the parameters move right, but the loss returned is the sum over microbatches: report the batch's.",
        ),
        (right / steps, "the parameters move right, but the loss returned is divided once too often."),
    ]
    expect(found, right, mistakes, "the parameters move right, but the loss returned", f"{steps} microbatches")


def _check_clipping(function: Callable[..., Any], gradient: Tensor) -> None:
    limit, norm = 0.05, gradient.norm()
    scaled = gradient * limit / norm
    mistakes = [
        (gradient, "gradient not clipped: clip_grad_norm_ before optimizer.step(), after the last backward()."),
        (gradient.clamp(-limit, limit), "each entry is clipped on its own, which turns the gradient: clip its *norm*."),
        (gradient / norm, "the gradient is scaled to norm 1: to max_grad_norm."),
        (gradient * limit, "the gradient is multiplied by max_grad_norm: scale its norm *to* max_grad_norm."),
    ]
    for steps in (1, 2):
        setting = f"max_grad_norm={limit}, gradient_accumulation_steps={steps}"
        found = _step(function, steps, limit, setting=setting).by
        length = found.norm()
        if steps == 2 and not same(found, scaled) and not any(same(found, wrong) for wrong, _ in mistakes):
            raise WrongAnswer(
                f"With {setting}: the move has norm {length:.4f}, and another direction than the gradient: you clip each "
                "microbatch. Clip once, after the last backward()."
            )
        expect(found, scaled, mistakes, "the clipped gradient", setting)
    large = _step(function, 1, 10 * norm.item(), setting="a max_grad_norm above the norm").by
    expect(
        large, gradient, [(gradient * 10, "gradients are scaled up.")], "the gradient", "a max_grad_norm above the norm"
    )
    none = _step(function, 1, None, setting="max_grad_norm=None").by
    expect(none, gradient, [], "the gradient (nothing is clipped)", "max_grad_norm=None")


def _check_twice(function: Callable[..., Any], first: Tensor) -> None:
    model = Bigram(TABLE)
    _step(function, 2, model=model)
    table = model.table.detach().clone()
    second = _step(function, 2, model=model, setting="a second step").by
    right = gradient_of(coefficients(), table)
    stale = (right + first, "the gradient of the step before is still there: zero the gradients.")
    expect(second, right, [stale], "the gradient", "a second step")


def _check_old_log_probs(function: Callable[..., Any]) -> None:
    """Ratios of 0.5, 1 and 1.5 by turns; at 0.2 the first is clipped where A < 0, the last where A > 0."""
    rows = label_log_probs(TABLE)
    width, cycle = max(map(len, rows)), (0.5, 1.0, 1.5)
    ratios = torch.tensor([[cycle[(i + t) % 3] for t in range(width)] for i in range(len(rows))], dtype=torch.float64)
    padded = torch.stack([torch.nn.functional.pad(row, (0, width - len(row))) for row in rows])
    right, unclipped = [], []
    for row, ratio in zip(coefficients(), ratios.tolist(), strict=True):
        weighted = [c * r for c, r in zip(row, ratio[: len(row)], strict=True)]
        unclipped.append(weighted)
        right.append(
            [c * (not ((c > 0 and r > 1.2) or (c < 0 and r < 0.8))) for c, r in zip(weighted, ratio, strict=False)]
        )
    settings: dict[str, Any] = {
        "importance_reweighting_method": "grpo",
        "old_log_probs": padded - ratios.log(),
        "cliprange": 0.2,
    }
    mistakes = [
        (gradient_of(coefficients()), "old_log_probs are not used: this is the gradient of 'none'."),
        (gradient_of(unclipped), "the ratio is not clipped: is cliprange passed on?"),
    ]
    for steps in (1, 2):
        setting = f"importance_reweighting_method='grpo', gradient_accumulation_steps={steps}"
        moved = _step(function, steps, setting=setting, **settings)
        hint = "the gradient (are old_log_probs cut like the rows?)"
        expect(moved.by, gradient_of(right), mistakes, hint, setting)


def _check_settings(function: Callable[..., Any]) -> None:
    still = (gradient_of(coefficients()), "the settings are not used: this is the default's gradient.")
    constant: dict[str, Any] = {"loss_normalization": "constant", "normalization_constant": 40}
    right = gradient_of(coefficients(divisor=40))
    for steps in (1, 2):
        setting = f"loss_normalization='constant', normalization_constant=40, gradient_accumulation_steps={steps}"
        divided = (
            right / steps,
            f"the constant is the batch's only divisor: do not divide by {steps} microbatches too.",
        )
        expect(_step(function, steps, setting=setting, **constant).by, right, [still, divided], "the gradient", setting)
    setting = "baseline='none', advantage_normalizer='none'"
    settings: dict[str, Any] = {"baseline": "none", "advantage_normalizer": "none"}
    plain = gradient_of(coefficients(REWARDS.tolist()))
    expect(_step(function, 1, setting=setting, **settings).by, plain, [still], "the gradient", setting)
