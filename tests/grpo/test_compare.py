import csv
import json
import math
from pathlib import Path

import pytest

from grpo.cli import main
from grpo.compare import (
    PlotSettings,
    compare,
    estimate,
    figure,
    final_values,
    load_cells,
    plot,
    stack,
    table,
    varied_number,
)

# Student's t, 97.5%: 12.706 for 1 degree of freedom, 4.303 for 2, 3.182 for 3 (any table).


def write_run(folder: Path, cell: str, seed: int, accuracies: list[float], done: bool = True, **config) -> None:
    run = folder / cell / f"seed{seed}"
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"seed": seed, "run_dir": str(run), **config}))
    rows = [{"kind": "validation", "step": 10 * i, "accuracy": value} for i, value in enumerate(accuracies)]
    rows += [{"kind": "train", "step": 1, "reward": 0.5, "grad_norm": None}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if done:
        (run / "done.json").write_text("{}")


@pytest.fixture
def folder(tmp_path) -> Path:
    for seed, (low, high) in enumerate([(0.50, 0.60), (0.60, 0.72), (0.70, 0.78)], start=1):
        write_run(tmp_path, "slow", seed, [0.1, low], learning_rate=1e-4)
        write_run(tmp_path, "fast", seed, [0.1, high], learning_rate=1e-3)
    write_run(tmp_path, "fast", 4, [0.1, 0.2], done=False, learning_rate=1e-3)
    return tmp_path


def test_estimate_by_hand() -> None:
    three = estimate([0.5, 0.6, 0.7])
    assert (three.mean, three.n) == (pytest.approx(0.6), 3)
    assert three.half == pytest.approx(4.303 * 0.1 / math.sqrt(3), rel=1e-3)
    assert estimate([0.2, 0.4]).half == pytest.approx(12.706 * math.sqrt(0.02) / math.sqrt(2), rel=1e-3)
    assert estimate([0.4]).half == math.inf
    assert str(estimate([0.4])) == "0.400 (one seed)"
    with pytest.raises(ValueError, match="values is empty"):
        estimate([])


def test_only_ended_runs_count_and_cells_keep_the_files_order(folder) -> None:
    assert {cell: list(runs) for cell, runs in load_cells(folder).items()} == {"fast": [1, 2, 3], "slow": [1, 2, 3]}
    (folder / "sweep.toml").write_text("[cells]\nslow = {}\nnot-yet = {}\n")
    assert list(load_cells(folder)) == ["slow", "fast"]
    with pytest.raises(FileNotFoundError, match="holds no run that has ended"):
        load_cells(folder / "slow")


def test_final_values_and_paired_difference_by_hand(folder) -> None:
    cells = load_cells(folder)
    assert final_values(cells["fast"], "accuracy") == {1: 0.60, 2: 0.72, 3: 0.78}
    fast, slow = compare(cells, "accuracy", "slow")
    assert slow.difference is None
    # Differences 0.10, 0.12, 0.08: mean 0.10, standard deviation 0.02; the cells' own intervals are ten times as wide.
    assert fast.difference is not None
    assert fast.difference.mean == pytest.approx(0.10)
    assert fast.difference.half == pytest.approx(4.303 * 0.02 / math.sqrt(3), rel=1e-3)
    assert fast.verdict == "higher"
    assert compare(cells, "accuracy", "fast")[1].verdict == "lower"


def test_an_interval_with_zero_names_no_winner(tmp_path) -> None:
    for seed, (a, b) in enumerate([(0.5, 0.6), (0.6, 0.55), (0.7, 0.75)], start=1):
        write_run(tmp_path, "a", seed, [a])
        write_run(tmp_path, "b", seed, [b])
    rows = compare(load_cells(tmp_path))
    assert rows[1].verdict == "no difference seen"
    assert "no difference seen" in table(rows, "a")


def test_pairs_are_of_equal_seeds(tmp_path) -> None:
    for seed, value in ((1, 0.5), (2, 0.7)):
        write_run(tmp_path, "a", seed, [value])
    for seed, value in ((2, 0.75), (1, 0.51), (3, 0.9)):
        write_run(tmp_path, "b", seed, [value])
    b = compare(load_cells(tmp_path))[1]
    assert b.difference is not None
    assert (b.final.n, b.difference.n) == (3, 2)
    assert b.difference.mean == pytest.approx((0.01 + 0.05) / 2)


def test_steps_that_not_every_seed_reached_are_left_out_of_the_mean(tmp_path) -> None:
    write_run(tmp_path, "a", 1, [0.1, 0.2, 0.3])
    write_run(tmp_path, "a", 2, [0.3, 0.4])
    steps, values = stack(load_cells(tmp_path)["a"], "accuracy")
    assert steps == [0, 10]
    assert values.tolist() == [[0.1, 0.2], [0.3, 0.4]]


def test_the_varied_number_is_found_when_it_is_the_only_one(folder, tmp_path_factory) -> None:
    assert varied_number(load_cells(folder)) == ("learning_rate", {"fast": 1e-3, "slow": 1e-4})
    two = tmp_path_factory.mktemp("two")
    write_run(two, "a", 1, [0.1], estimator="grpo", steps=3)
    write_run(two, "b", 1, [0.1], estimator="rft", steps=3)
    assert varied_number(load_cells(two)) is None
    write_run(two, "c", 1, [0.1], estimator="rft", steps=4)
    assert varied_number(load_cells(two)) is None


def test_figure_has_a_line_a_cell_with_its_seeds_and_the_values(folder) -> None:
    left, right = figure(load_cells(folder)).axes
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["fast (3 seeds)", "slow (3 seeds)"]
    assert right.get_xscale() == "log"
    assert right.get_xlabel() == "learning rate"
    bold = [line for line in left.lines if line.get_linewidth() == 2]
    assert bold[0].get_ydata().tolist() == pytest.approx([0.1, 0.7])
    assert len(left.lines) == 2 + 6


def test_plot_writes_figures_and_their_data(folder, capsys) -> None:
    rows = plot(PlotSettings(str(folder), cells=("slow", "fast")))
    assert [row.cell for row in rows] == ["slow", "fast"]
    out = folder / "figures"
    assert sorted(path.name for path in out.iterdir()) == ["accuracy.csv", "accuracy.png", "accuracy.svg"]
    with (out / "accuracy.csv").open() as file:
        lines = list(csv.reader(file))
    assert lines[0] == ["cell", "seed", "step", "accuracy"]
    assert lines[1:3] == [["slow", "1", "0", "0.1"], ["slow", "1", "10", "0.5"]]
    assert len(lines) == 1 + 2 * 3 * 2
    text = capsys.readouterr().out
    assert "difference to slow" in text
    assert "+0.100 ± 0.050" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metrics", "acuracy"], "metric='acuracy' is unknown; choose one of accuracy"),
        (["--cells", "slow", "fsat"], "no ended run of fsat; there are fast, slow"),
        (["--reference", "fsat"], "reference='fsat' is no cell; the cells are fast, slow"),
        (["--metrics", "grad_norm"], "metric='grad_norm' was not recorded in fast, slow"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_written(folder, capsys, arguments, message) -> None:
    assert main(["plot", str(folder), *arguments]) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "figures").exists()


def test_cells_with_batches_of_other_sizes_are_drawn_against_rollouts(tmp_path) -> None:
    """Steps 0 and 10 of 128 and of 16 rollouts: 1,280 and 160 rollouts at the end."""
    write_run(tmp_path, "large", 1, [0.1, 0.2], rollout_batch=128)
    write_run(tmp_path, "small", 1, [0.1, 0.3], rollout_batch=16)
    cells = load_cells(tmp_path)
    left = figure(cells).axes[0]
    assert left.get_xlabel() == "rollouts"
    assert {tuple(line.get_xdata()) for line in left.lines} == {(0, 1280), (0, 160)}
    alone = figure({"large": cells["large"]}).axes[0]
    assert alone.get_xlabel() == "rollout step"
    assert {tuple(line.get_xdata()) for line in alone.lines} == {(0, 10)}


RUNS = Path(__file__).resolve().parents[2] / "data" / "runs"


@pytest.mark.parametrize("folder", sorted(p.parent for p in RUNS.glob("*/sweep.toml")), ids=lambda p: p.name)
def test_the_committed_figures_are_those_of_the_committed_runs(folder: Path, tmp_path) -> None:
    cells = load_cells(folder)
    assert {seed for runs in cells.values() for seed in runs} == {42, 43, 44, 45}
    plot(PlotSettings(str(folder), out=str(tmp_path)))
    assert (tmp_path / "accuracy.csv").read_bytes() == (folder / "figures" / "accuracy.csv").read_bytes()
    assert (folder / "figures" / "accuracy.png").is_file()
