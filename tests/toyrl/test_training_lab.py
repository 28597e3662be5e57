import pytest
import torch

from toyrl import Settings, train
from toyrl.training_lab import MOST_EPOCHS, TRAINING_STEPS, compute_training


def test_it_is_the_training_of_toyrl_for_the_chosen_settings():
    shown = compute_training("inclusion_and_order", "normalized", "clipped", 0.1, 100, 0.5, seeds=3)
    settings = Settings(
        "inclusion_and_order", "normalized", "clipped", cliprange=0.1, inner_steps=100, scale=0.5, epochs=6
    )
    run = train(settings, 3)
    assert shown.steps == [0, 100, 200, 300, 400, 500, 600]
    torch.testing.assert_close(shown.curves["p_sorted"], run.curves["p_sorted"], rtol=0, atol=0)
    torch.testing.assert_close(shown.curves["expected_reward"], run.curves["expected_reward"], rtol=0, atol=0)


@pytest.mark.parametrize(("inner_steps", "epochs"), [(1, MOST_EPOCHS), (20, TRAINING_STEPS // 20)])
def test_the_work_is_bounded(inner_steps, epochs):
    assert compute_training(inner_steps=inner_steps, seeds=2).settings.epochs == epochs


@pytest.mark.parametrize(("reward", "most"), [("sorted_or_not", 1), ("positions_right", 3), ("inclusion_and_order", 5)])
def test_the_most_is_what_the_sorted_response_earns(reward, most):
    assert compute_training(reward, inner_steps=200, seeds=2).most == most


def test_greedy_responses_count_every_seed_and_end_sorted_where_training_works():
    shown = compute_training(scale=0.2, seeds=8)
    assert [prompt for prompt, _ in shown.greedy] == [[1, 0, 2], [3, 2, 4], [1, 2, 3]]
    assert all(responses[0][0] == sorted(prompt) and responses[0][1] >= 6 for prompt, responses in shown.greedy)
    for run in (shown, compute_training(scale=1.0, seeds=8)):
        for _, responses in run.greedy:
            counts = [count for _, count in responses]
            assert sum(counts) == 8
            assert counts == sorted(counts, reverse=True)


def test_bonus_and_penalty_reach_the_settings_and_progress_is_reported():
    done = []
    shown = compute_training(inner_steps=150, entropy_weight=0.4, kl_weight=0.1, seeds=2, on_progress=done.append)
    assert done == [0.0, 0.25, 0.5, 0.75]
    assert (shown.settings.entropy_weight(0.0), shown.settings.entropy_weight(1.0)) == (0.4, 0.0)
    assert shown.settings.kl_weight == 0.1


def test_threads_are_as_before():
    torch.set_num_threads(2)
    compute_training(inner_steps=200, seeds=2)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("seeds", 1), ("entropy_weight", -0.1), ("kl_weight", float("nan")), ("scale", 0.0), ("inner_steps", 0)],
)
def test_what_makes_no_run_is_refused_by_name(argument, value):
    with pytest.raises(ValueError, match=f"{argument}={value}"):
        compute_training(**{argument: value})
