"""Functions of one's own, named by file: loaded before any compute, called in training, missed in clear words."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
import torch

from grpo import TrainSettings, compute_group_normalized_rewards, train
from grpo.cli import main
from grpo.config import preset
from grpo.own import load_own

ROOT = Path(__file__).resolve().parents[2]
CODE = """
import torch

def half_mean(rewards):
    return rewards.mean(dim=1, keepdim=True) / 2

def wide(rewards):
    return rewards.sum()[None, None, None]

number = 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(CODE)
    return "mine.py:half_mean"


def test_the_function_is_the_one_of_the_file(mine):
    assert load_own("baseline", mine)(torch.tensor([[1.0, 0.0, 0.0, 1.0]])).tolist() == [[0.25]]


def test_settings_hold_the_name_and_give_the_function(mine):
    settings = TrainSettings(baseline=mine, estimator="rloo")
    assert settings.to_json()["baseline"] == mine
    assert settings.advantage_settings()["baseline"](torch.ones(1, 2)).tolist() == [[0.5]]
    assert settings.advantage_settings()["advantage_normalizer"] == "none"
    assert {str(file) for file in settings.own_files()} == {"mine.py"}
    assert TrainSettings().own_files() == set()


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("there.py:f", FileNotFoundError, r"baseline='there\.py:f': there is no file 'there\.py'"),
        ("mine.py:f", ValueError, r"mine\.py has no function 'f'; it has half_mean, wide"),
        ("mine.py:number", ValueError, "has no function 'number'"),
        ("bad.py:f", ValueError, r"bad\.py fails, ZeroDivisionError"),
        (
            "median",
            ValueError,
            "baseline='median' is unknown; choose one of 'none', 'mean', 'leave_one_out', or a callable",
        ),
    ],
)
def test_what_cannot_be_had_is_said_before_any_compute(mine, value, error, message):
    Path("bad.py").write_text("1 / 0")
    with pytest.raises(error, match=message):
        TrainSettings(baseline=value)


def test_a_run_with_it_and_its_copy(mine, random_model_folder, tmp_path, capsys):
    folder = tmp_path / "run"
    settings = ["--model", str(random_model_folder), "--steps", "1", "--rollout-batch", "8", "--train-batch", "8"]
    settings += ["--group-size", "4", "--train-questions", "4", "--validation-questions", "2", "--max-new-tokens", "4"]
    assert main(["train", "--preset", "tiny", "--baseline", mine, "--run-dir", str(folder), *settings]) == 0
    assert (folder / "mine.py").read_text() == CODE


def test_a_result_of_another_shape_stops_the_run(mine, random_model_folder, tmp_path):
    settings = TrainSettings(
        model=str(random_model_folder),
        baseline="mine.py:wide",
        rollout_batch=8,
        train_batch=8,
        validation_questions=2,
        max_new_tokens=4,
        steps=1,
        run_dir=str(tmp_path / "run"),
    )
    with pytest.raises(ValueError, match=r"the baseline callable returned shape \(1, 1, 1\)"):
        train(settings, progress=False)


def test_without_it_nothing_changes():
    assert preset("tiny").advantage_settings() == {
        "baseline": "mean",
        "advantage_eps": 1e-6,
        "advantage_normalizer": "std",
    }


def test_the_shrunken_baseline_by_hand():
    """Groups [1, 0] and [1, 1], k = 4: the other group's mean is 1 for the first, 1/2 for the second."""
    shrunk = load_own("baseline", f"{ROOT}/data/experiments/own.py:shrunk")
    first = [(0 + 4 * 1) / 5, (1 + 4 * 1) / 5]
    second = [(1 + 4 * 0.5) / 5] * 2
    rewards = torch.tensor([[1.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    assert shrunk(rewards).tolist() == [pytest.approx(first), pytest.approx(second)]
    assert shrunk(rewards[:1]).tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("rates", [(0.3, 0.7), (0.5, 0.5), (0.05, 0.9)])
def test_the_shrunken_baseline_leaves_the_gradient_unbiased(rates):
    """Two prompts with groups of 2, success rates p: over all 16 outcomes the mean of A times the score is p (1 - p)."""
    shrunk = load_own("baseline", f"{ROOT}/data/experiments/own.py:shrunk")
    p = torch.tensor(rates, dtype=torch.float64)[:, None]
    gradient = torch.zeros(2, dtype=torch.float64)
    for outcome in product((0.0, 1.0), repeat=4):
        rewards = torch.tensor(outcome, dtype=torch.float64).view(2, 2)
        probability = torch.where(rewards == 1, p, 1 - p).prod()
        advantages, _ = compute_group_normalized_rewards(rewards.flatten(), 2, shrunk, advantage_normalizer="none")
        gradient += probability * (advantages.view(2, 2) * (rewards - p)).mean(dim=1)
    assert gradient.tolist() == pytest.approx((p * (1 - p)).flatten().tolist(), rel=1e-12)
