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
