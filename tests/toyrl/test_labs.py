import math

import pytest
import torch

from toyrl import labs


def test_baseline_lab_agrees_with_its_simulation():
    result = labs.baseline_lab(p=0.8, baseline=0.8, samples=4, repeats=100_000)
    assert result["gradient"] == pytest.approx(0.16)
    assert result["variance"] == result["variance_mean"] == pytest.approx(0.16 * 0.36 / 4)
    assert result["variance_without"] == pytest.approx(0.16 * 0.04 / 4)  # the mean hurts at p = 0.8
    assert result["best_baseline"] == pytest.approx(0.2)
    assert result["simulated_mean"] == pytest.approx(0.16, abs=0.002)
    assert result["simulated_variance"] == pytest.approx(result["variance"], rel=0.03)


def test_reward_lab_by_hand():
    rows = labs.reward_lab([3, 1, 0, 2], [[0, 1, 2, 3], [7, 2, 2, 5], [0, 3, 1, 2]], "positions_right", "centered")
    assert [row["reward"] for row in rows] == [4, 1, 1]
    assert [row["delta"] for row in rows] == [2, -1, -1]
    assert [row["push"] for row in rows] == ["up", "down", "down"]
    rows = labs.reward_lab([1, 0], [[1, 1], [1, 1]], "inclusion_and_order", "normalized")
    assert [row["push"] for row in rows] == ["none", "none"]


@pytest.mark.parametrize(("advantage", "silent"), [(1.0, "above"), (-1.0, "below")])
def test_ratio_lab_shows_which_side_clipping_silences(advantage, silent):
    result = labs.ratio_lab(advantage, "clipped", cliprange=0.2)
    ratio, gradient = result["ratio"], result["gradient"]
    outside = ratio > 1.2 if silent == "above" else ratio < 0.8
    assert (gradient[outside] == 0).all()
    torch.testing.assert_close(gradient[~outside], -advantage * ratio[~outside])
    unclipped = labs.ratio_lab(advantage, "unclipped")
    torch.testing.assert_close(unclipped["loss"], -advantage * unclipped["ratio"])


def test_ratio_lab_takes_a_callable():
    result = labs.ratio_lab(1.0, lambda deltas, log_probs, old: -deltas * log_probs / old, old_log_prob=-1.6)
    torch.testing.assert_close(result["gradient"], torch.full((201,), 1 / 1.6, dtype=torch.float64))
    with pytest.raises(ValueError, match="old_log_prob=0 must be below 0"):
        labs.ratio_lab(1.0, old_log_prob=0)


def test_compute_baselines_is_the_lab_with_its_sample():
    data = labs.compute_baselines(p=0.8, baseline=0.5, samples=4, baseline_a=0.0, baseline_b=0.0, repeats=500)
    assert data.numbers == labs.baseline_lab(0.8, 0.5, 4, 500)
    assert data.estimates.shape == (500,)
    assert data.estimates.var().item() == data.numbers["simulated_variance"]
    assert data.states.deltas(True).tolist() == [11, 9, 0, 2]
    with pytest.raises(ValueError, match=r"p=1\.5 must be between 0 and 1"):
        labs.compute_baselines(p=1.5, baseline=0.0)


def test_without_drift_every_method_weighs_every_token_with_the_advantage():
    data = labs.compute_drift(advantage=-1.5)
    torch.testing.assert_close(data.ratio, torch.ones(8, dtype=torch.float64))
    for method, weights in data.weights.items():
        torch.testing.assert_close(weights, torch.full((8,), -1.5, dtype=torch.float64), msg=method)
        assert not data.masked[method].any()


def test_drift_by_hand():
    """The first token has p = 1/2; a logit moved by log 3 makes it 3/4, a ratio of 1.5."""
    data = labs.compute_drift(advantage=2.0, drift=math.log(3), lower=0.2, upper=0.4)
    assert data.ratio[0].item() == pytest.approx(1.5)
    assert data.ratio[2].item() == pytest.approx(0.5625 / 0.3)  # odds 3/7 x 3 = 9/7, so 9/16
    assert data.weights["none"][0].item() == pytest.approx(2)
    assert data.weights["noclip"][0].item() == pytest.approx(3)
    assert data.weights["grpo"][0].item() == 0
    assert data.masked["grpo"][0]
    assert data.weights["cispo"][0].item() == pytest.approx(2 * 1.4)
    assert data.sequence_ratio == pytest.approx(data.ratio.prod().item() ** (1 / 8))
    assert data.masked["gspo"].all() == (data.sequence_ratio > 1.4)


def test_a_bad_token_that_became_likelier_keeps_its_gradient_and_one_that_became_rarer_loses_it():
    data = labs.compute_drift(advantage=-1.0, spread=1.0)
    assert data.masked["grpo"].tolist() == (data.ratio < 0.8).tolist()
    assert data.masked["grpo"].any()
    assert (data.ratio[~data.masked["grpo"]] > 1.2).any()
    assert not labs.compute_drift(advantage=0.0, spread=1.0).masked["grpo"].any()


def test_drift_refuses_what_makes_no_policy():
    with pytest.raises(ValueError, match="drift=nan must be a finite number"):
        labs.compute_drift(1.0, drift=float("nan"))
    with pytest.raises(ValueError, match=r"cliprange=\(-1.0, 0.2\)"):
        labs.compute_drift(1.0, lower=-1.0)
