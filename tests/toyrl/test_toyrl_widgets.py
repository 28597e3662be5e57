"""The widgets as hands use them: set a control, look at the data and the picture. The numbers are test_labs' affair."""

import time

import pytest
import torch

from toyrl.labs import compute_baselines, compute_drift
from toyrl.widgets import (
    BaselineLab,
    RatioLab,
    RewardLab,
    capped,
    describe_baselines,
    describe_drift,
    draw_baselines,
    draw_drift,
)

SLOW = 3.0
"""A machine with other work to do may take so many times as long."""


def png(lab) -> bytes:
    picture = lab.picture().bundle
    assert picture["image/png"]
    assert picture["text/plain"] == lab.describe(lab.data)
    return lab._image.value


def seconds(action) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def test_sliding_p_and_b_moves_the_variance():
    lab = BaselineLab()
    assert lab.data.numbers["variance"] == pytest.approx(0.5 * 0.5**3 / 10)  # p (1 - p)^3 / n
    before = png(lab)
    lab.controls["p"].value = 0.8
    between = png(lab)
    lab.controls["baseline"].value = 0.8
    assert lab.state["p"] == lab.state["baseline"] == 0.8
    assert lab.data.numbers["variance"] == pytest.approx(0.16 * 0.36 / 10)
    assert lab.data.numbers["variance"] > lab.data.numbers["variance_without"]  # the mean hurts above 2/3
    assert len({before, between, png(lab)}) == 3
    lab.set(baseline_a=0.0, baseline_b=0.0)
    assert lab.data.states.standard_deviation(True) == pytest.approx(5.32, abs=0.01)


def test_a_baseline_lab_answers_within_a_second():
    lab = BaselineLab()
    assert seconds(lambda: lab.set(p=0.3, samples=50)) < 1 * SLOW


def test_the_best_baseline_is_drawn_too():
    data = compute_baselines(p=0.3, baseline=0.7)
    assert data.numbers["variance"] == pytest.approx(0)
    assert data.estimates.std() == pytest.approx(0, abs=1e-12)
    assert len(draw_baselines(data).axes) == 3
    assert "b = 0.70, the best 0.00000" in describe_baselines(data)


def test_drift_moves_the_weights_and_the_picture():
    lab = RatioLab()
    before = png(lab)
    lab.set(drift=0.5, spread=1.0)
    assert png(lab) != before
    assert lab.data.masked["grpo"].any()
    assert not lab.data.masked["noclip"].any()
    after = png(lab)
    lab.controls["advantage"].value = -1.0
    assert png(lab) != after
    assert (lab.data.weights["none"] == -1).all()
    assert seconds(lambda: lab.set(drift=-0.5)) < 1 * SLOW


def test_an_invalid_clip_range_keeps_the_picture_and_says_why():
    lab = RatioLab()
    before, state = png(lab), dict(lab.state)
    lab.controls["lower"].value = -0.1
    assert "cliprange=(-0.1, 0.2) must be a finite number of at least 0" in lab.problem
    assert "cliprange=(-0.1, 0.2)" in lab._message.value
    assert png(lab) == before
    assert lab.state == state
    lab.controls["lower"].value = 0.3
    assert lab.problem == lab._message.value == ""
    assert lab.data.cliprange == (0.3, 0.2)


def test_masked_and_capped_tokens_are_told_apart_without_colour():
    data = compute_drift(advantage=1.0, drift=0.5, spread=0.5)
    over = (data.ratio > 1.2).tolist()
    assert data.masked["grpo"].tolist() == capped(data, "cispo").tolist() == over
    assert not capped(data, "none").any()
    panels = draw_drift(data).axes
    assert [bool(bar.get_hatch()) for bar in panels[5].patches] == over
    (crosses,) = [line for line in panels[3].lines if line.get_marker() == "x"]
    assert list(crosses.get_xdata()) == [t for t, is_over in enumerate(over) if is_over]
    assert describe_drift(data).count("masked") == sum(over) + len(over)  # clip masks those, gspo all of them


def test_the_reward_lab_trains_what_is_chosen():
    lab = RewardLab()
    assert lab.data.curves["p_sorted"].shape == (32, 61)
    assert lab.progress.value == 1.0
    before = png(lab)
    lab.controls["scale"].value = 0.2
    assert lab.data.settings.scale == 0.2
    assert lab.data.curves["p_sorted"][:, -1].mean() > 0.9
    assert png(lab) != before


def test_a_pinned_setting_is_compared_seed_by_seed():
    lab = RewardLab()
    lab.set(seeds=8)
    without = png(lab)
    lab.pin()
    assert png(lab) != without
    assert "paired over 8 seeds: +0.00 ± 0.00, no difference seen" in lab.describe(lab.data)
    pinned = lab.pinned
    lab.set(scale=0.2, seeds=16)
    assert lab.pinned is pinned
    words = lab.describe(lab.data)
    assert "paired over 8 seeds: +0." in words
    assert words.endswith("higher")
    lab.unpin()
    assert "pinned" not in lab.describe(lab.data)


def test_a_setting_that_cannot_train_keeps_the_last_run():
    lab = RewardLab()
    lab.set(seeds=2)
    data, before = lab.data, png(lab)
    lab.set(loss="clipped", cliprange=-1.0)
    assert "cliprange=-1.0" in lab.problem
    lab.set(loss="naive", kl_weight=-1.0)
    assert "kl_weight=-1.0 must be a finite number of at least 0" in lab.problem
    assert lab.data is data
    assert png(lab) == before


def test_thirty_two_seeds_within_two_seconds():
    lab = RewardLab()
    heavy = {"loss": "clipped", "kl_weight": 0.1, "entropy_weight": 0.4, "inner_steps": 2}
    assert seconds(lambda: lab.set(**heavy)) < 2 * SLOW
    assert lab.data.curves["p_sorted"].shape == (32, 301)


def test_a_name_that_no_control_has_is_refused():
    with pytest.raises(ValueError, match="sample=3: there is no such control; use p, baseline, samples"):
        BaselineLab().set(sample=3)


def test_one_change_of_many_controls_draws_once(monkeypatch):
    lab = RatioLab()
    drawn = []
    monkeypatch.setattr(lab, "draw", lambda data: drawn.append(data) or "<p>drawn</p>")
    lab.set(advantage=2.0, drift=0.1, spread=0.0)
    assert len(drawn) == 1
    torch.testing.assert_close(drawn[0].weights["none"], torch.full((8,), 2.0, dtype=torch.float64))
