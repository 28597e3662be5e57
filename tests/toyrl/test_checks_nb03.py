import pytest
import torch

from toyrl.checks import nb03


def variance(p, b, n):
    return p * (1 - p) * (1 - p - b) ** 2 / n


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (variance, "Right: "),
        (lambda p, b, n: torch.tensor(variance(p, b, n)), "Right: "),
        (lambda p, b, n: None, "Not done yet: "),
        (lambda p, b, n: ..., "Not done yet: "),
        (lambda p, b, n: variance(p, b, 1), "Almost: this is the variance of one estimate"),
        (lambda p, b, n: variance(p, b, n) / n, "Almost: you divide by samples twice"),
        (lambda p, b, n: variance(p, b, n) ** 0.5, "Almost: this is the standard deviation"),
        (
            lambda p, b, n: (p * (1 - b) ** 2 * (1 - p) ** 2 + (1 - p) * b**2 * p**2) / n,
            "Almost: this is the second moment",
        ),
        (lambda p, b, n: p * (1 - p) ** 3 / n, "Not yet: right for baseline 0"),
        (lambda p, b, n: p * (1 - p) * ((1 - b) * (1 - p)) ** 2 / n, "Not yet: you gave the failure an estimate of 0"),
        (lambda p, b, n: p * (1 - p) * (1 - 2 * p) ** 2 / n, "Not yet: right for the baseline b = p only"),
        (lambda p, b, n: (1 - p - b) ** 2 / n, "Almost: this is the squared distance"),
        (lambda p, b, n: p * (1 - p) / n, "Not yet: at p=0.1, baseline=0.0, samples=1 you return 0.0900"),
        (lambda p, b, n: float("nan"), "Not yet: at p=0.1"),
        (lambda p, b, n: "p", "Not yet: variance(p=0.1, baseline=0.0, samples=1) returned a str"),
        (lambda p, b: 0, "Not yet: variance(p=0.1, baseline=0.0, samples=1) raised TypeError"),
        (0.25, "Not yet: give the function itself"),
    ],
)
def test_variance(said, answer, message):
    assert said(nb03.check_variance, answer).startswith(message)


def gap(p, right, wrong, b):
    return abs((right - b) * (1 - p) + (wrong - b) * p)


def hurts(p, right, wrong):
    return gap(p, right, wrong, p * right + (1 - p) * wrong) > gap(p, right, wrong, 0)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (hurts, "Right: "),
        (lambda p, right, wrong: torch.tensor(hurts(p, right, wrong)), "Right: "),
        (lambda p, right, wrong: None, "Not done yet: "),
        (lambda p, right, wrong: p > 2 / 3, "Not yet: that is the rule for rewards 1 and 0"),
        (lambda p, right, wrong: not hurts(p, right, wrong), "Almost: you have it the wrong way round"),
        (lambda p, right, wrong: False, "Not yet: you always say False"),
        (lambda p, right, wrong: True, "Not yet: you always say True"),
        (
            lambda p, right, wrong: gap(p, right, wrong, (right + wrong) / 2) > gap(p, right, wrong, 0),
            "Not yet: you take (right + wrong) / 2",
        ),
        (
            lambda p, right, wrong: gap(p, right, wrong, p) > gap(p, right, wrong, 0),
            "Not yet: you take p as the mean",
        ),
        (lambda p, right, wrong: gap(p, right, wrong, 0), "Not yet: return True or False"),
        (lambda p, right, wrong: p > 1 / 2, "Not yet: p=0.6, rewards 1 and 0: you say True"),
        (lambda p, right: True, "Not yet: mean_hurts(p=0.1, right=1.0, wrong=0.0) raised TypeError"),
    ],
)
def test_mean_hurts(said, answer, message):
    assert said(nb03.check_mean_hurts, answer).startswith(message)


def test_mean_hurts_is_asked_away_from_ties_and_its_message_is_true():
    for right, wrong in nb03.REWARD_PAIRS:
        for p in nb03.HURTS_PS:
            assert abs(gap(p, right, wrong, p * right + (1 - p) * wrong) - gap(p, right, wrong, 0)) > 0.01
    assert [hurts(p, 1, 0) for p in (0.5, 0.66, 0.67, 0.9)] == [False, False, True, True]
    assert all(hurts(p / 100, 1, -1) for p in range(1, 100) if p != 50)
    assert not any(hurts(p / 100, 3, 2) for p in range(1, 100))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda r: (r.sum(dim=1, keepdim=True) - r) / (r.shape[1] - 1), "Right: "),
        (lambda r: None, "Not done yet: "),
        (lambda r: r.mean(dim=1, keepdim=True).expand_as(r), "Not yet: this is the mean of the whole group"),
        (lambda r: r.mean(dim=1), "Not yet: your result has shape (3,), one number a group"),
        (lambda r: r.mean(dim=1, keepdim=True), "Not yet: your result has shape (3, 1), one number a group"),
        (lambda r: r.mean(), "Not yet: your result has shape (); expected"),
        (lambda r: (r.sum(dim=1, keepdim=True) / (r.shape[1] - 1)).expand_as(r), "Not yet: you divide by g - 1, but"),
        (lambda r: (r.sum(dim=1, keepdim=True) - r) / r.shape[1], "Not yet: the sum leaves the reward out, but"),
        (lambda r: r - (r.sum(dim=1, keepdim=True) - r) / (r.shape[1] - 1), "Not yet: these are the deltas"),
        (lambda r: (r.sum(dim=0) - r) / (len(r) - 1), "Not yet: you averaged down the columns"),
        (torch.zeros_like, "Not yet: the others of "),
        (lambda r: "mean", "Not yet: return a tensor"),
        (lambda r: r.mean(dim=7), "Not yet: leave_one_out(rewards) raised IndexError"),
    ],
)
def test_leave_one_out(said, answer, message):
    assert said(nb03.check_leave_one_out, answer).startswith(message)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda pi, s, r, b: (pi * (r - b)) @ s - (pi * r) @ s, "Right: "),
        (lambda pi, s, r, b: None, "Not done yet: "),
        (lambda pi, s, r, b: (pi * (r - b)) @ s, "Almost: this is the expected estimate"),
        (lambda pi, s, r, b: (pi * b) @ s, "Almost: the sign is the other way round"),
        (lambda pi, s, r, b: ((pi * b) @ s).abs(), "Almost: you return absolute values"),
        (lambda pi, s, r, b: -(b.unsqueeze(1) * s).mean(dim=0), "Not yet: you average over the actions"),
        (lambda pi, s, r, b: -(b.unsqueeze(1) * s).sum(dim=0), "Not yet: you sum over the actions"),
        (lambda pi, s, r, b: torch.zeros(3), "Not yet: you return 0 for a baseline that looks"),
        (lambda pi, s, r, b: (pi * r) @ s, "Not yet: this is the true gradient"),
        (lambda pi, s, r, b: 2.0 * pi, "Not yet: for a constant baseline you find a bias of"),
        (lambda pi, s, r, b: -2.0 * (pi * b) @ s, "Not yet: for probabilities [0.5, 0.3, 0.2]"),
        (lambda pi, s, r, b: -(pi * b) @ s.sum(dim=1), "Not yet: your result has shape ()"),
        (lambda pi, s, r, b: [], "Not yet: your result has shape (0,)"),
        (lambda pi, s, r, b: {}, "Not yet: return a tensor"),
        (lambda pi, s, r, b: b @ s @ s @ b @ s, "Not yet: bias(...) raised RuntimeError"),
    ],
)
def test_bias(said, answer, message):
    assert said(nb03.check_bias, answer).startswith(message)
