import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from grpo.intervals import mean_interval
from toyrl import exact, plots


@pytest.fixture
def ax():
    figure, axes = plt.subplots()
    yield axes
    plt.close(figure)


def test_curves_draw_the_mean_the_interval_and_the_seeds(ax):
    values = torch.tensor([[0.0, 1.0, torch.nan], [1.0, 3.0, torch.nan], [2.0, 5.0, torch.nan]])
    plots.curves(ax, {"a": values, "b": values + 1})
    lines = ax.get_lines()
    assert len(lines) == 2 * (3 + 1)
    assert lines[3].get_ydata().tolist() == [1, 3]  # the mean; the column of NaN is left out
    assert lines[0].get_alpha() < lines[3].get_linewidth()
    mean, half = mean_interval(values[:, :2].double())
    corners = ax.collections[0].get_paths()[0].vertices
    assert corners[:, 1].max() == pytest.approx((mean + half).max().item())
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]
    assert ax.get_xlabel() == "epoch"
    assert ax.get_ylabel()


def test_curves_take_an_x_axis(ax):
    plots.curves(ax, {"a": torch.rand(4, 3)}, x=[0, 10, 30], xlabel="rollouts", singles=False)
    (line,) = ax.get_lines()
    assert line.get_xdata().tolist() == [0, 10, 30]
    assert ax.get_xlabel() == "rollouts"
    assert ax.get_legend() is None


def test_bars_have_the_means_as_heights(ax):
    table = {
        "r1": {"x": torch.tensor([0.0, 1.0]), "y": torch.tensor([1.0, 1.0])},
        "r2": {"x": torch.tensor([2.0, 4.0])},
    }
    plots.bars(ax, table)
    assert sorted(patch.get_height() for patch in ax.patches) == [0.5, 1.0, 3.0]


def test_landscape_writes_its_values_and_says_which_position_is_which(ax):
    rewards = exact.landscape("positions_right", torch.tensor([1, 0, 2]), torch.tensor([0, 1, 2]), (0, 2), 5)
    plots.landscape(ax, rewards, positions=(0, 2), mark=(0, 2))
    assert len(ax.texts) == 25
    assert "position 2" in ax.get_xlabel()
    assert "position 0" in ax.get_ylabel()
    written = {text.get_position(): text.get_text() for text in ax.texts}
    assert written[(2, 0)] == "3"  # column 2, row 0: [0, 1, 2]
    assert ax.patches[0].get_xy() == (1.5, -0.5)


def test_histogram_has_the_probabilities_as_heights(ax):
    plots.reward_histogram(ax, {"sparse": {0.0: 0.99, 1.0: 0.01}})
    assert [patch.get_height() for patch in ax.patches] == [0.99, 0.01]


def test_token_distributions_show_probabilities(ax):
    log_probs = torch.tensor([[0.25, 0.75], [1.0, 0.0]]).log()
    plots.token_distributions(ax, log_probs, title="seed 0")
    np.testing.assert_allclose(ax.images[0].get_array(), [[0.25, 0.75], [1.0, 0.0]], rtol=1e-6)


def test_variance_curves_are_the_closed_forms(ax):
    plots.variance_against_baseline(ax, [0.3], simulated={0.3: ([0.0, 1.0], [0.1, 0.02])})
    line, mean, best, crosses = ax.get_lines()[:4]
    assert line.get_ydata()[0].item() == pytest.approx(0.3 * 0.7**3)
    assert (mean.get_xdata()[0], best.get_xdata()[0]) == (0.3, 0.7)
    assert list(crosses.get_xdata()) == [0.0, 1.0]


def test_variance_against_p_crosses_at_two_thirds(ax):
    plots.variance_against_p(ax)
    plain, with_mean, best = (np.asarray(line.get_ydata()) for line in ax.get_lines()[:3])
    p = np.linspace(0, 1, 201)
    inside = (p > 0) & (p < 1)
    assert ((with_mean > plain) == (p > 2 / 3))[inside].all()
    assert best.max() < 1e-30


def test_points_on_log_axes(ax):
    plots.points(ax, {"error": ([1, 10], torch.rand(5, 2) + 0.5)}, "samples", "error", log=True)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
