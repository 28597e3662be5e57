"""Checks of notebook 03's exercises. Each prints one message, which starts with "Right" when the answer is right."""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor

from toyrl import bandits

VARIANCE_CASES = [(p, b, n) for p in (0.1, 0.35, 0.8) for b in (0.0, 0.25, 0.9) for n in (1, 4)]
"""(p, baseline, samples) at which the variance is compared."""

REWARD_PAIRS = ((1.0, 0.0), (1.0, -1.0), (1.0, -0.5), (3.0, 2.0))
"""(right, wrong) rewards at which the mean baseline is compared with none."""

HURTS_PS = (0.1, 0.2, 0.3, 0.4, 0.45, 0.6, 0.63, 0.7, 0.8, 0.9)
"""Probabilities of the right action, none of them at a tie."""


def check_variance(answer: Callable[[float, float, int], object]) -> None:
    """Check `answer(p, baseline, samples)`, the variance of the Bernoulli gradient estimate. Prints one message."""
    print(_variance_message(answer))


def check_mean_hurts(answer: Callable[[float, float, float], object]) -> None:
    """Check `answer(p, right, wrong)`: does the mean baseline give more variance than none? Prints one message."""
    print(_mean_hurts_message(answer))


def check_leave_one_out(answer: Callable[[Tensor], object]) -> None:
    """Check `answer(rewards)`, the mean of the other rewards of each group, (groups, g). Prints one message."""
    print(_leave_one_out_message(answer))


def check_bias(answer: Callable[[Tensor, Tensor, Tensor, Tensor], object]) -> None:
    """Check `answer(probabilities, scores, rewards, baseline)`, the bias of an estimate. Prints one message."""
    print(_bias_message(answer))


def _variance_message(answer: Callable[..., object]) -> str:
    values, problem = _collect(answer, VARIANCE_CASES, "variance(p={}, baseline={}, samples={})")
    if problem:
        return problem
    truth = [_enumerated_variance(*case) for case in VARIANCE_CASES]
    if _same(values, truth):
        return "Right: your formula agrees with enumerating both actions, at every p, baseline and sample size tried."
    for formula, message in _VARIANCE_SLIPS:
        if _same(values, [formula(*case) for case in VARIANCE_CASES]):
            return message
    k = _first_difference(values, truth)
    p, b, n = VARIANCE_CASES[k]
    return (
        f"Not yet: at p={p}, baseline={b}, samples={n} you return {values[k]:.4f}, enumeration gives {truth[k]:.4f}. "
        "Write down the two values that one estimate can take, and how often each comes."
    )


def _enumerated_variance(p: float, baseline: float, samples: int) -> float:
    probabilities, scores, rewards = bandits.bernoulli(p)
    return bandits.moments(probabilities, scores, rewards - baseline)[1].item() / samples


def _second_moment(p: float, b: float, n: int) -> float:
    return (p * (1 - b) ** 2 * (1 - p) ** 2 + (1 - p) * b**2 * p**2) / n


_VARIANCE_SLIPS: list[tuple[Callable[[float, float, int], float], str]] = [
    (
        lambda p, b, n: _enumerated_variance(p, b, 1),
        "Almost: this is the variance of one estimate. The mean of `samples` independent ones varies less. "
        "By what factor?",
    ),
    (
        lambda p, b, n: _enumerated_variance(p, b, n) / n,
        "Almost: you divide by samples twice. The variance of a mean falls as 1/n, not as 1/n^2.",
    ),
    (
        lambda p, b, n: _enumerated_variance(p, b, n) ** 0.5,
        "Almost: this is the standard deviation. The variance is its square.",
    ),
    (
        _second_moment,
        "Almost: this is the second moment, E[x^2]. The variance is E[x^2] - (E[x])^2, and the mean is p (1 - p).",
    ),
    (
        lambda p, b, n: _enumerated_variance(p, 0.0, n),
        "Not yet: right for baseline 0, and you return the same for every baseline. The reward 1 becomes 1 - b; "
        "what does the reward 0 become?",
    ),
    (
        lambda p, b, n: p * (1 - p) * ((1 - b) * (1 - p)) ** 2 / n,
        "Not yet: you gave the failure an estimate of 0. With a baseline it is (0 - b)(0 - p) = b p.",
    ),
    (
        lambda p, b, n: _enumerated_variance(p, p, n),
        "Not yet: right for the baseline b = p only. The argument `baseline` may be any number.",
    ),
    (
        lambda p, b, n: (1 - p - b) ** 2 / n,
        "Almost: this is the squared distance between the two values of the estimate. A variable that takes two values "
        "has that, times the probability of each, as its variance.",
    ),
]


def _mean_hurts_message(answer: Callable[..., object]) -> str:
    cases = [(p, right, wrong) for right, wrong in REWARD_PAIRS for p in HURTS_PS]
    values, problem = _collect(answer, cases, "mean_hurts(p={}, right={}, wrong={})")
    if problem:
        return problem
    if any(value not in (0.0, 1.0) for value in values):
        return "Not yet: return True or False: is the variance with the mean baseline larger than without a baseline?"
    truth = [float(_mean_has_more_variance(*case)) for case in cases]
    if _same(values, truth):
        return (
            "Right: for rewards 1 and 0 the mean hurts above p = 2/3; for 1 and -1 it hurts everywhere but at 1/2; "
            "for 3 and 2, far from zero, it never does. No baseline is the baseline 0: what counts is which of the two is "
            "nearer to b*."
        )
    for rule, message in _HURTS_SLIPS:
        if _same(values, [float(rule(*case)) for case in cases]):
            return message
    k = _first_difference(values, truth)
    p, right, wrong = cases[k]
    mean, none = _two_variances(p, right, wrong)
    return (
        f"Not yet: p={p}, rewards {right:g} and {wrong:g}: you say {bool(values[k])}, and the variance with the mean is "
        f"{mean:.4f}, without a baseline {none:.4f}."
    )


def _two_variances(p: float, right: float, wrong: float) -> tuple[float, float]:
    """The variance with the mean as the baseline, and without a baseline."""
    probabilities, scores, _ = bandits.bernoulli(p)
    rewards = torch.tensor([wrong, right], dtype=torch.float64)
    mean = probabilities @ rewards
    with_mean, without = (bandits.moments(probabilities, scores, rewards - b)[1].item() for b in (mean, 0.0))
    return with_mean, without


def _mean_has_more_variance(p: float, right: float, wrong: float) -> bool:
    with_mean, without = _two_variances(p, right, wrong)
    return with_mean > without


def _gap(p: float, right: float, wrong: float, baseline: float) -> float:
    """The distance between the two values of the estimate."""
    return abs((right - baseline) * (1 - p) + (wrong - baseline) * p)


_HURTS_SLIPS: list[tuple[Callable[[float, float, float], bool], str]] = [
    (
        lambda p, right, wrong: p > 2 / 3,
        "Not yet: that is the rule for rewards 1 and 0. With other rewards the border lies elsewhere: use `right` and "
        "`wrong`.",
    ),
    (
        lambda p, right, wrong: not _mean_has_more_variance(p, right, wrong),
        "Almost: you have it the wrong way round. True means that the mean baseline has *more* variance.",
    ),
    (
        lambda p, right, wrong: False,
        "Not yet: you always say False. Subtracting the mean makes the *deltas* as small as a constant can, but the "
        "estimate is delta times score, and the rare action has the larger score.",
    ),
    (
        lambda p, right, wrong: True,
        "Not yet: you always say True. At p = 0.1 with rewards 1 and 0 the mean helps.",
    ),
    (
        lambda p, right, wrong: _gap(p, right, wrong, (right + wrong) / 2) > _gap(p, right, wrong, 0.0),
        "Not yet: you take (right + wrong) / 2 as the mean. The mean reward under the policy weighs them by p and 1 - p.",
    ),
    (
        lambda p, right, wrong: _gap(p, right, wrong, p) > _gap(p, right, wrong, 0.0),
        "Not yet: you take p as the mean. That is the mean of rewards 1 and 0; in general it is p right + (1 - p) wrong.",
    ),
]


def _leave_one_out_message(answer: Callable[..., object]) -> str:
    rewards = torch.tensor([[4.0, 1.0, 0.0, 2.0], [1.0, 0.0, 0.0, 9.0], [3.0, 3.0, 3.0, 3.0]], dtype=torch.float64)
    result, problem = _call(answer, (rewards.clone(),), "leave_one_out(rewards)")
    if problem:
        return problem
    try:
        found = torch.as_tensor(result, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        return f"Not yet: return a tensor, one number a reward. You return a {type(result).__name__}."
    groups, g = rewards.shape
    if found.shape in {(groups,), (groups, 1)}:
        return (
            f"Not yet: your result has shape {tuple(found.shape)}, one number a group. Each reward leaves out itself, so "
            f"each has a baseline of its own: shape {(groups, g)}."
        )
    if found.shape != rewards.shape:
        return f"Not yet: your result has shape {tuple(found.shape)}; expected that of the rewards, {(groups, g)}."
    total = rewards.sum(dim=1, keepdim=True)
    truth = (total - rewards) / (g - 1)
    if torch.allclose(found, truth):
        return "Right: each reward is compared with the mean of the others, which knows nothing of its own action."
    for wrong, message in (
        ((total / g).expand_as(rewards), "this is the mean of the whole group. Leave the reward itself out."),
        (total.expand_as(rewards) / (g - 1), "you divide by g - 1, but the sum still holds the reward itself."),
        ((total - rewards) / g, "the sum leaves the reward out, but you divide by g. How many others are there?"),
        (rewards - truth, "these are the deltas r - b. Return the baseline b itself; the subtraction comes later."),
        (
            (rewards.sum(dim=0) - rewards) / (groups - 1),
            "you averaged down the columns, over other prompts. A group is a row: dim=1.",
        ),
    ):
        if torch.allclose(found, wrong):
            return f"Not yet: {message}"
    k = int((found - truth).abs().reshape(-1).argmax())
    row, column = divmod(k, g)
    return (
        f"Not yet: the others of {rewards[row, column]:g} in the group {rewards[row].tolist()} average "
        f"{truth[row, column]:.3f}; you return {found[row, column]:.3f}."
    )


def _bias_message(answer: Callable[..., object]) -> str:
    probabilities = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    scores = torch.eye(3, dtype=torch.float64) - probabilities  # softmax policy: one row an action
    rewards = torch.tensor([1.0, 0.0, 4.0], dtype=torch.float64)
    constant, looking = torch.full_like(rewards, 2.0), torch.tensor([0.5, 0.0, 3.0], dtype=torch.float64)
    found: dict[str, Tensor] = {}
    for name, baseline in (("constant", constant), ("looking", looking)):
        result, problem = _call(answer, (probabilities, scores, rewards, baseline), "bias(...)")
        if problem:
            return problem
        try:
            found[name] = torch.as_tensor(result, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError):
            return f"Not yet: return a tensor with the shape of one score. You return a {type(result).__name__}."
        if found[name].shape != scores[0].shape:
            return (
                f"Not yet: your result has shape {tuple(found[name].shape)}; expected that of one score, "
                f"{tuple(scores[0].shape)}: sum over the actions, and over nothing else."
            )
    truth = {
        name: -(probabilities * baseline) @ scores for name, baseline in (("constant", constant), ("looking", looking))
    }
    if _agree(found, truth):
        return (
            "Right: the constant has bias 0, and the baseline that looks at the action shifts the gradient by "
            f"{[round(x, 2) for x in truth['looking'].tolist()]}. No number of samples averages that away."
        )
    for formula, message in _BIAS_SLIPS:
        wrong = {
            name: formula(probabilities, scores, rewards, baseline)
            for name, baseline in (("constant", constant), ("looking", looking))
        }
        if _agree(found, wrong):
            return message
    if not torch.allclose(found["constant"], truth["constant"], atol=1e-9):
        return (
            "Not yet: for a constant baseline you find a bias of "
            f"{[round(x, 3) for x in found['constant'].tolist()]}, and it is 0, since the scores average to 0."
        )
    return (
        f"Not yet: for probabilities {probabilities.tolist()} and the baseline {looking.tolist()} you return "
        f"{[round(x, 3) for x in found['looking'].tolist()]}; it is {[round(x, 3) for x in truth['looking'].tolist()]}. "
        "Subtract the true gradient from the expected estimate."
    )


_BIAS_SLIPS: list[tuple[Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], str]] = [
    (
        lambda pi, s, r, b: (pi * (r - b)) @ s,
        "Almost: this is the expected estimate. Its bias is what is left after the true gradient, E[r score], is "
        "subtracted.",
    ),
    (
        lambda pi, s, r, b: (pi * b) @ s,
        "Almost: the sign is the other way round. Bias is the expected estimate minus the truth.",
    ),
    (
        lambda pi, s, r, b: ((pi * b) @ s).abs(),
        "Almost: you return absolute values. A bias has a direction; keep the sign.",
    ),
    (
        lambda pi, s, r, b: -(b.unsqueeze(1) * s).mean(dim=0),
        "Not yet: you average over the actions as if all were equally likely. Weigh each by its probability.",
    ),
    (
        lambda pi, s, r, b: -(b.unsqueeze(1) * s).sum(dim=0),
        "Not yet: you sum over the actions without their probabilities. An expectation weighs each action by pi(a).",
    ),
    (
        lambda pi, s, r, b: torch.zeros_like(s[0]),
        "Not yet: you return 0 for a baseline that looks at the action, too. E[b(a) score(a)] does not vanish when b "
        "depends on a.",
    ),
    (
        lambda pi, s, r, b: (pi * r) @ s,
        "Not yet: this is the true gradient, without the baseline. Subtract it from the expected estimate with the "
        "baseline.",
    ),
]


def _agree(found: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return all(torch.allclose(found[name], other[name], atol=1e-9) for name in found)


def _call(answer: Callable[..., object], arguments: tuple, name: str) -> tuple[object, str | None]:
    """Call a learner's function; return its result, or a message that says why there is none."""
    if not callable(answer):
        return None, f"Not yet: give the function itself, not its result ({answer!r})."
    try:
        result = answer(*arguments)
    except Exception as error:  # a learner's function may raise anything, and the notebook goes on
        return None, f"Not yet: {name} raised {type(error).__name__}: {error}"
    if result is None or result is ...:
        return None, "Not done yet: your function returns nothing."
    return result, None


def _collect(answer: Callable[..., object], cases: list[tuple], name: str) -> tuple[list[float], str | None]:
    """Call a learner's function on every case; return its numbers, or a message that says why there are none."""
    return_values = []
    for case, result, problem in _results(answer, cases, name):
        if problem:
            return [], problem
        try:
            return_values.append(float(result))  # type: ignore[arg-type]
        except (TypeError, ValueError, RuntimeError):
            return [], f"Not yet: {name.format(*case)} returned a {type(result).__name__}; expected one number."
    return return_values, None


def _results(
    answer: Callable[..., object], cases: list[tuple], name: str
) -> Iterator[tuple[tuple, object, str | None]]:
    for case in cases:
        yield (case, *_call(answer, case, name.format(*case)))


def _same(values: list[float], others: list[float]) -> bool:
    return all(abs(a - b) <= 1e-6 for a, b in zip(values, others, strict=True))


def _first_difference(values: list[float], truth: list[float]) -> int:
    return next(k for k, (a, b) in enumerate(zip(values, truth, strict=True)) if not abs(a - b) <= 1e-6)
