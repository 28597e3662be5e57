"""Each check of notebook 10 says what is wrong with typical wrong answers, and passes the right one."""

from pathlib import Path

import pytest
import torch

from grpo.checks import nb10
from grpo.checks.nb10 import FOUR_LOGS, check_inner_loop, check_names, check_range, four_logs, inner_steps
from grpo.runs import RunDir

RUNS = Path(__file__).parents[2] / "data" / "runs" / "off_policy"

RIGHT_NAMES = {run: log[0] for run, log in FOUR_LOGS.items()}
BY_NAME = {name: run for run, name in RIGHT_NAMES.items()}


def swapped(one, other):
    a, b = BY_NAME[one], BY_NAME[other]
    return RIGHT_NAMES | {a: other, b: one}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "Give a dict with the keys A, B, C, D"),
        ({"A": "clip"}, "Give a dict with the keys A, B, C, D"),
        (dict.fromkeys("ABCD"), "Not done yet"),
        (RIGHT_NAMES | {"B": "ppo"}, "B: 'ppo' is none of"),
        (swapped("on_policy", "noclip"), "is not"),
        (swapped("noclip", "on_policy"), "although its ratios are not 1"),
        (swapped("clip", "gspo"), "is not"),
        (swapped("clip", "noclip"), "is not"),
    ],
)
def test_wrong_names(said, answer, words):
    printed = said(check_names, answer)
    assert words in printed
    assert not printed.startswith("Right")


def test_right_names_and_the_table(said):
    assert said(check_names, RIGHT_NAMES).startswith("Right")
    assert len(four_logs().splitlines()) == 5
    assert not any(name in four_logs() for name in ("on_policy", "noclip", "gspo"))


def test_the_logs_can_be_told_apart():
    """What the messages say about each method is true of its log."""
    log = {name: FOUR_LOGS[run][1:] for name, run in BY_NAME.items()}
    assert log["on_policy"] == (1.0, 0.0, 0.0, 1.0)
    assert log["noclip"][2] == 0 < log["noclip"][1]
    assert 0 < log["clip"][2] < 0.3 < 0.5 < log["gspo"][2]


@pytest.mark.parametrize(("name", "log"), [(log[0], log[1:]) for log in FOUR_LOGS.values()])
def test_the_logs_are_those_of_the_recorded_runs(name, log):
    rows = RunDir(RUNS / name.replace("on_policy", "on_policy_128") / "seed42").read("metrics", "train")
    digits = {"ratio_mean": 3, "approx_kl": 4, "clip_fraction": 3, "ratio_max": 1}
    for (metric, places), shown in zip(digits.items(), log, strict=True):
        values = [row[metric] for row in rows if row[metric] is not None]
        assert round(sum(values) / len(values), places) == shown, metric


def range_of(distance):
    return lambda d, mask, share: nb10.smallest_range(distance(d, mask).abs(), share)


def mean(d, mask):
    return (d * mask).sum(1) / mask.sum(1)


RANGES = {
    "nothing": (lambda d, mask, share: None, "not done yet"),
    "no function": (0.1, "the function itself"),
    "stub": (range_of(lambda d, mask: (d.exp() - 1).flatten()), "single tokens, padding and all"),
    "tokens": (range_of(lambda d, mask: d[mask].exp() - 1), "single tokens; GSPO looks at sequences"),
    "padding": (range_of(lambda d, mask: d.mean(1).exp() - 1), "the padding is in it"),
    "padding in the sum": (range_of(lambda d, mask: (d.sum(1) / mask.sum(1)).exp() - 1), "the padding is in it"),
    "padding in the length": (range_of(lambda d, mask: (d * mask).mean(1).exp() - 1), "counted in the length"),
    "mean of ratios": (range_of(lambda d, mask: mean(d.exp(), mask) - 1), "mean of the ratios"),
    "product": (range_of(lambda d, mask: (d * mask).sum(1).exp() - 1), "product of the ratios"),
    "log-ratio": (range_of(mean), "from 1"),
    "turned round": (
        lambda d, mask, share: nb10.smallest_range((mean(d, mask).exp() - 1).abs(), 1 - share if share else 0.0),
        "inside, not outside",
    ),
    "too wide": (lambda d, mask, share: 9.0, "outside 1 ± 9.0000 are 0% of the sequences"),
    "text": (lambda d, mask, share: "wide", "cannot be read"),
}


@pytest.mark.parametrize(("answer", "words"), RANGES.values(), ids=RANGES)
def test_wrong_ranges(said, answer, words):
    printed = said(check_range, answer)
    assert words in printed
    assert not printed.startswith("Right")


def test_right_range(said):
    assert said(check_range, range_of(lambda d, mask: mean(d, mask).exp() - 1)).startswith("Right")


def test_smallest_range_by_hand():
    distances = torch.tensor([0.1, 0.4, 0.2, 0.3])
    assert nb10.smallest_range(distances, 0.0) == pytest.approx(0.4)
    assert nb10.smallest_range(distances, 0.25) == pytest.approx(0.3)
    assert nb10.smallest_range(distances, 0.49) == pytest.approx(0.3)
    assert nb10.smallest_range(distances, 0.5) == pytest.approx(0.2)


LOOPS = {name: (lambda *a, name=name: inner_steps(*a, name), words) for name, words in nb10._LOOP_MISTAKES.items()}
LOOPS |= {
    "still": (lambda logits, *rest: logits, "did not move"),
    "nothing": (lambda *a: None, "not done yet"),
    "one step": (lambda z, a, r, steps, lr, e: inner_steps(z, a, r, 1, lr, e), "One step alone is right"),
    "half the rate": (lambda z, a, r, steps, lr, e: inner_steps(z, a, r, steps, lr / 2, e), "wrong already"),
    "a list": (lambda *a: inner_steps(*a).tolist(), "is a list"),
}


@pytest.mark.parametrize(("answer", "words"), LOOPS.values(), ids=LOOPS)
def test_wrong_loops(said, answer, words):
    printed = said(check_inner_loop, answer)
    assert words in printed
    assert not printed.startswith("Right")


def test_right_loop(said):
    assert said(check_inner_loop, inner_steps).startswith("Right")


def test_the_loops_first_step_by_hand():
    """Two equal actions, both sampled once, advantages 1 and -1: the gradient of -mean(A w) is (-1/2, 1/2)."""
    z = inner_steps(torch.zeros(2, dtype=torch.float64), torch.tensor([0, 1]), torch.tensor([1.0, -1.0]), 1, 0.1, 0.2)
    assert z.tolist() == pytest.approx([0.05, -0.05])
