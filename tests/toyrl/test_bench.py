import json

import pytest
import torch

from toyrl import bench
from toyrl.policy import init_policy, token_logits
from toyrl.sorting import DEFAULT_PROMPTS, positions_right


def test_the_lectures_model_is_toyrls():
    policy = init_policy([3])
    torch.testing.assert_close(bench.LectureModel(policy)(DEFAULT_PROMPTS), token_logits(policy, DEFAULT_PROMPTS)[0])


@pytest.mark.parametrize("lists", [False, True])
def test_the_lectures_reward_is_positions_right(lists):
    responses = torch.randint(5, (3, 4, 3), generator=torch.Generator().manual_seed(0))
    rewards = bench.lecture_rewards(DEFAULT_PROMPTS, responses, lists)
    assert torch.equal(rewards, positions_right(DEFAULT_PROMPTS.unsqueeze(1), responses))


def test_the_lectures_loop_learns():
    records = bench.lecture_run(0, epochs=100, lists=True)
    assert len(records) == 1000
    assert records[-1]["reward"] > records[0]["reward"]


def test_the_last_line_is_json(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["bench", "--seeds", "4", "--repeats", "1"])
    bench.main()
    result = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    expected = result["seeds"] / result["many_seconds"] * result["lecture_seconds"]
    assert result["runs_per_second_ratio_256"] == pytest.approx(expected, rel=0.02)
    expected = result["lecture_seconds"] / result["one_seed_seconds"]
    assert result["one_seed_ratio"] == pytest.approx(expected, rel=0.02)
