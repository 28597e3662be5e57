import pytest

from grpo.advantages import ESTIMATORS
from grpo.group_lab import FORMULAS, compute_group, parse_rewards


def rows(rewards):
    return {name: row for row in compute_group(rewards).rows for name in row.names}


def test_every_estimator_has_its_place():
    assert set(rows([1.0, 0.0])) == set(ESTIMATORS)
    assert len(compute_group([1.0, 0.0]).rows) == len(FORMULAS)


def test_one_right_of_four_by_hand():
    """mu = 1/4; s^2 = (9/16 + 3/16) / 3 = 1/4; the others of the right one average 0, those of a wrong one 1/3."""
    group = compute_group([1, 0, 0, 0])
    assert (group.mean, group.std) == (0.25, 0.5)
    found = rows([1, 0, 0, 0])
    assert found["reinforce"].advantages == found["rft"].advantages == [1, 0, 0, 0]
    assert found["grpo"].advantages == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert found["dr_grpo"].advantages == [0.75, -0.25, -0.25, -0.25]
    assert found["maxrl"].advantages == pytest.approx([3, -1, -1, -1], abs=1e-4)
    assert found["rloo"].advantages == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])
    assert {name: row.note for name, row in found.items() if row.note} == {
        "reinforce": "pushes none down",
        "rft": "pushes none down",
    }


@pytest.mark.parametrize(
    ("rewards", "name", "note"),
    [
        ([0, 0, 0], "reinforce", "no signal: all rewards are 0"),
        ([0, 0, 0], "maxrl", "no signal: all rewards are equal"),
        ([1, 1, 1], "reinforce", "pushes every response up"),
        ([1, 1, 1], "grpo", "no signal: all rewards are equal"),
        ([0.1] * 8, "grpo", "no signal: all rewards are equal"),  # not rounding error over eps
        ([-1, -2], "rft", "pushes every response down"),
        ([-1, 0], "rft", "pushes none up"),
        ([0.5, 0.51], "grpo", "a spread of 0.01 counts as much as one of 1"),
        ([1] + [0] * 15, "maxrl", "divides by μ = 0.062"),
        ([1], "reinforce", "pushes it up"),
        ([1], "dr_grpo", "no signal: all rewards are equal"),
    ],
)
def test_degenerate_groups_are_explained(rewards, name, note):
    assert rows(rewards)[name].note == note


@pytest.mark.parametrize(
    ("rewards", "name", "why"),
    [
        ([1], "grpo", "one reward has no others"),
        ([1], "rloo", "one reward has"),
        ([1, -1], "maxrl", "needs rewards >= 0"),
    ],
)
def test_an_estimator_that_refuses_says_why_and_the_others_go_on(rewards, name, why):
    found = rows(rewards)
    assert found[name].advantages is None
    assert found[name].note.startswith("refuses: ")
    assert why in found[name].note
    assert found["dr_grpo"].advantages is not None


@pytest.mark.parametrize("text", ["1 0 0.5", "1, 0, .5", "[1; 0\n5e-1]"])
def test_rewards_are_read_from_text(text):
    assert parse_rewards(text) == [1, 0, 0.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "rewards: '' is no number"),
        ("1 right", "rewards: 'right' is no number"),
        ("1 inf", "rewards: 'inf' is not finite"),
        ("1 " * 17, "rewards: 17 of them"),
    ],
)
def test_what_is_no_group_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_rewards(text)
    with pytest.raises(ValueError, match="must be one or more finite numbers"):
        compute_group([])
