"""The widgets as hands use them: set a control, look at the data and the picture."""

import json
import time
from pathlib import Path

import pytest

from grpo.runs import RunDir
from grpo.widgets import GroupLab, RolloutReader, RunComparer, compute_comparison, describe_group, draw_group

SLOW = 3.0
"""A machine with other work to do may take so many times as long."""


def seconds(action) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def labels(lab) -> list[str]:
    return [button.description for button in lab.buttons.children]


# ---- group lab ----


def test_typing_rewards_changes_the_advantages_and_the_picture():
    lab = GroupLab("1 0")
    before = lab._image.value
    lab.controls["rewards"].value = "1, 0, 0, 0"
    assert lab.data.rows[1].advantages == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert lab._image.value != before
    assert "grpo, grpo_constant  (r - μ) / (s + ε)       +1.50 -0.50 -0.50 -0.50" in lab.picture().bundle["text/plain"]
    assert seconds(lambda: lab.set(rewards="1 0 " * 8)) < 1 * SLOW


def test_clicking_a_response_turns_it_round():
    lab = GroupLab("1 0 0.5")
    assert labels(lab) == ["1: right ✓", "2: wrong ✗", "3: 0.5"]
    lab.buttons.children[1].click()
    lab.buttons.children[0].click()
    lab.buttons.children[2].click()
    assert lab.state["rewards"] == "0 1 0"
    assert labels(lab) == ["1: wrong ✗", "2: right ✓", "3: wrong ✗"]
    assert lab.data.rewards == [0, 1, 0]


def test_what_is_no_reward_keeps_the_group():
    lab = GroupLab("1 0")
    before, said = lab._image.value, labels(lab)
    lab.controls["rewards"].value = "1 zero"
    assert "rewards: &#x27;zero&#x27; is no number" in lab._message.value
    assert (lab._image.value, labels(lab), lab.data.rewards) == (before, said, [1, 0])
    lab.flip(1)
    assert lab.problem == ""
    assert lab.state["rewards"] == "1 1"


def test_a_group_reads_without_colour():
    lab = GroupLab("1 0 0 0")
    figure = draw_group(lab.data)
    hatched = [[bool(bar.get_hatch()) for bar in axes.patches] for axes in figure.axes]
    assert hatched[2] == [False, True, True, True]  # grpo
    assert hatched[0] == hatched[1] == [False] * 4  # rewards, reinforce
    lab.set(rewards="1")
    assert "refuses: group_size=1" in describe_group(lab.data)
    assert any("refuses" in text.get_text() for axes in draw_group(lab.data).axes for text in axes.texts)


# ---- rollout reader ----


@pytest.fixture
def run_dir(tmp_path):
    run = RunDir(tmp_path / "run")
    run.create({"prompt": "tiny_r1_zero", "reward_fn": "grpo.grading.r1_zero_reward_fn"})
    for step in (1, 2, 3):
        row = {
            "step": step,
            "question": f"{step} + 1?",
            "ground_truth": str(step + 1),
            "response": " </think> <answer> 2 </answer>",
            "finish_reason": "stop",
            "token_ids": [5, 6, 7],
            "reward": float(step == 1),
            "advantage": 0.5 if step == 1 else -0.5,
        }
        run.append("rollouts", [row])
    return run.path


def test_pages_are_turned(run_dir):
    reader = RolloutReader(run_dir)
    first = reader._html.value
    assert "1 + 1?" in first
    back, on = reader.children[0].children[-2:]
    on.click()
    assert "2 + 1?" in reader._html.value
    assert "✗ REFUSED: right: 2 is not 3" in reader._html.value
    on.click()
    on.click()
    assert reader.data[0].number == reader.controls["page"].value == 3  # the last
    back.click()
    back.click()
    back.click()
    assert reader._html.value == first
    assert reader.picture().bundle["text/html"] == first
    assert seconds(lambda: reader.turn(1)) < 1 * SLOW


@pytest.mark.parametrize(
    ("control", "value", "message"),
    [
        ("page", 4, "page=4: there are pages 1 to 3"),
        ("run_dir", "nowhere", "holds no config.json"),
        ("shade", "entropy", "did not record the entropy"),
    ],
)
def test_what_cannot_be_read_keeps_the_page(run_dir, control, value, message):
    reader = RolloutReader(run_dir)
    before = reader._html.value
    reader.controls[control].value = value
    assert message in reader._message.value
    assert reader._html.value == before
    with pytest.raises(ValueError, match="holds no config"):
        RolloutReader(run_dir / "nowhere")


# ---- run comparer ----


def write_sweep(folder: Path, finals: dict[str, list[float]]) -> Path:
    for cell, values in finals.items():
        for seed, value in enumerate(values, start=1):
            run = RunDir(folder / cell / f"seed{seed}")
            run.create({"estimator": cell, "seed": seed})
            run.append("metrics", [{"kind": "validation", "step": s, "accuracy": value * s / 10} for s in (0, 10)])
            run.append("metrics", [{"kind": "train", "step": 10, "reward": value}])
            (run.path / "done.json").write_text(json.dumps({}))
    return folder


@pytest.fixture
def sweep(tmp_path):
    return write_sweep(tmp_path / "one", {"a": [0.5, 0.6, 0.7], "b": [0.7, 0.8, 0.9], "c": [0.4, 0.6, 0.8]})


def test_cells_are_compared_by_choice(sweep):
    lab = RunComparer(sweep)
    before = lab._image.value
    assert lab.state["cells"] == ("a", "b", "c")
    assert lab.controls["cells"].rows == 3  # all are seen
    assert [row.verdict for row in lab.data.rows] == ["", "higher", "no difference seen"]
    assert lab.data.rows[1].difference.mean == pytest.approx(0.2)
    lab.controls["reference"].value = "b"
    assert [row.verdict for row in lab.data.rows] == ["lower", "", "no difference seen"]
    lab.controls["cells"].value = ("c",)
    assert [row.cell for row in lab.data.rows] == ["b", "c"]  # the reference stays
    assert lab._image.value != before
    assert "difference to b" in lab.picture().bundle["text/plain"]
    assert seconds(lambda: lab.set(metric="reward")) < 1 * SLOW


def test_another_folder_lists_its_own_cells(sweep, tmp_path):
    lab = RunComparer(sweep)
    lab.controls["folder"].value = str(write_sweep(tmp_path / "two", {"x": [0.1, 0.2], "y": [0.3, 0.4]}))
    assert lab.problem == ""
    assert lab.state["cells"] == ("x", "y")
    assert lab.state["reference"] == "x"
    assert lab.data.name == "two"


def test_what_cannot_be_compared_keeps_the_picture(sweep):
    lab = RunComparer(sweep)
    before = lab._image.value
    for control, value, message in (
        ("folder", str(sweep / "nothing"), "holds no run that has ended"),
        ("metric", "clip_fraction", "was not recorded in a, b, c"),
        ("cells", (), "none is chosen"),
    ):
        good = lab.controls[control].value
        lab.controls[control].value = value
        assert message in lab._message.value
        assert lab._image.value == before
        lab.controls[control].value = good
        assert lab.problem == ""
    with pytest.raises(ValueError, match="no ended run of z; there are a, b, c"):
        compute_comparison(sweep, "accuracy", ("a",), "z")
