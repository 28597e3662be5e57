import pytest
import torch

from toyrl.checks.nb04 import check_delta, check_prediction, check_sparse
from toyrl.settings import Settings, linear_to_zero


def centered(rewards):
    return rewards - rewards.mean(dim=1, keepdim=True)


@pytest.mark.parametrize(
    ("prediction", "message"),
    [
        ({"rewards": None, "centered": None}, "Not done yet: write your prediction for rewards and for centered"),
        ({"rewards": "worse", "centered": None}, "Not done yet: write your prediction for centered"),
        (None, "Not yet: prediction should be a dict"),
        ({"rewards": "lower", "centered": "same"}, "Not yet: prediction['rewards'] is 'lower'; use one of better"),
        ({"rewards": "same", "centered": "same"}, "Not quite: with delta rewards"),
        ({"rewards": "better", "centered": "better"}, "Not quite: with delta rewards"),
        ({"rewards": "worse", "centered": "worse"}, "Not quite: with delta centered"),
        ({"rewards": "worse", "centered": "same"}, "Right: adding 10"),
    ],
)
def test_prediction(prediction, message, said):
    assert said(check_prediction, prediction).startswith(message)


SPARSE = {"reward": "sorted_or_not", "scale": 0.2}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (None, "Not done yet"),
        ({"scale": 0.2}, "return a Settings(...)"),
        (Settings(scale=0.2, responses=50), "Not yet: the reward is 'positions_right'"),
        (Settings(**SPARSE, prompts=torch.tensor([[1, 0, 2]])), "keep the default prompts"),
        (Settings(**SPARSE, epochs=200, responses=500), "Over budget: 200 epochs of 500 responses are 100,000"),
        (Settings(**SPARSE, epochs=200, responses=50), "Over budget: 200 epochs of 10 inner steps are 2,000"),
        (Settings(reward="sorted_or_not", responses=50), "Look at the scale."),
        (Settings(**SPARSE, responses=50, entropy_weight=0.3), "it is paid for staying undecided"),
        (Settings(**SPARSE), "groups had no signal"),
        (Settings(**SPARSE, responses=50, entropy_weight=linear_to_zero(0.1)), "Right: "),
    ],
)
def test_sparse(settings, message, said):
    printed = said(check_sparse, lambda: settings)
    assert message in printed
    assert printed.startswith("Right") == message.startswith("Right")


def test_sparse_tells_what_was_raised(said):
    printed = said(check_sparse, lambda: Settings(reward="sorted"))
    assert printed.startswith("Not yet: my_settings() raised ValueError: reward='sorted'")


@pytest.mark.parametrize(
    ("delta", "message"),
    [
        (lambda rewards: None, "Not done yet"),
        (lambda rewards: rewards.mean(dim=1), "you return (40,); give every reward a delta"),
        (lambda rewards: rewards.tolist(), "you return list; give every reward a delta"),
        (lambda rewards: rewards, "in it is better than anything else"),
        (lambda rewards: rewards - rewards.mean(), "You average over all groups"),
        (lambda rewards: centered(rewards) / rewards.std(dim=1, keepdim=True), "do not divide by it"),
        (lambda rewards: centered(rewards) / (rewards.mean(dim=1, keepdim=True) + 1e-6), "adding 10 to every reward"),
        (lambda rewards: centered(rewards) * torch.arange(10), "depend on the order"),
        (lambda rewards: -centered(rewards), "Is a sign turned round?"),
        (lambda rewards: centered(rewards).abs(), "Is a sign turned round?"),
        (lambda rewards: torch.zeros_like(rewards), "every delta is 0"),
        (lambda rewards: centered(rewards) / rewards.std(), "change with the groups beside it"),
        (lambda rewards: 3 * centered(rewards), "that is our 'centered', up to a factor"),
        (lambda rewards: centered(rewards) / (rewards.std(dim=1, keepdim=True) + 1e-6), "our 'normalized'"),
        (lambda rewards: rewards.undefined, "my_delta raised AttributeError"),
        (lambda rewards: centered(rewards).clamp(min=0), "Right: your delta"),
        (lambda rewards: centered(rewards).sign(), "Right: your delta"),
    ],
)
def test_delta(delta, message, said):
    printed = said(check_delta, delta)
    assert message in printed
    assert printed.startswith("Right") == message.startswith("Right")
