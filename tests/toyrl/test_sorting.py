import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toyrl import sorting
from toyrl.sorting import PLAIN_REWARDS, REWARDS

PROMPT = [3, 1, 0, 2]
RESPONSES = [[0, 1, 2, 3], [7, 2, 2, 5], [0, 3, 1, 2]]

# By hand, for prompt [3,1,0,2] and the three responses above.
TABLE = {
    "positions_right": [4, 1, 1],
    "inclusion_and_order": [7, 3, 6],
    "sorted_or_not": [1, 0, 0],
}


@pytest.mark.parametrize("name", TABLE)
def test_rewards_have_the_values_worked_out_by_hand(name):
    assert REWARDS[name](torch.tensor(PROMPT), torch.tensor(RESPONSES)).tolist() == TABLE[name]
    assert [PLAIN_REWARDS[name](PROMPT, response) for response in RESPONSES] == TABLE[name]


@st.composite
def pairs(draw):
    n = draw(st.integers(1, 6))
    vocab = draw(st.integers(1, 10))
    rows = st.lists(st.lists(st.integers(0, vocab - 1), min_size=n, max_size=n), min_size=1, max_size=4)
    return draw(rows), draw(rows)


@pytest.mark.parametrize("name", TABLE)
@settings(max_examples=200, deadline=None)
@given(pair=pairs())
def test_tensor_rewards_equal_the_list_versions(name, pair):
    prompts, responses = pair
    expected = [[PLAIN_REWARDS[name](prompt, response) for response in responses] for prompt in prompts]
    got = REWARDS[name](torch.tensor(prompts).unsqueeze(1), torch.tensor(responses).unsqueeze(0))
    assert got.tolist() == expected


@pytest.mark.parametrize("name", TABLE)
def test_tensor_rewards_equal_the_list_versions_on_every_input_of_three_symbols(name):
    rows = sorting.all_prompts(3, 3)
    expected = [[PLAIN_REWARDS[name](p, r) for r in rows.tolist()] for p in rows.tolist()]
    assert REWARDS[name](rows.unsqueeze(1), rows.unsqueeze(0)).tolist() == expected


def test_process_reward_sums_to_the_outcome_reward_and_sits_where_it_is_earned():
    prompt, response = torch.tensor(PROMPT), torch.tensor([7, 1, 0, 3])
    assert sorting.positions_right_process(prompt, response).tolist() == [0, 1, 0, 1]
    assert sorting.positions_right(prompt, response).item() == 2


def test_from_plain_gives_the_function_and_calls_it_once_an_input():
    calls = []

    def plain(prompt, response):
        calls.append((prompt, response))
        return sum(response) - prompt[0]

    reward = sorting.from_plain(plain)
    prompts, responses = torch.tensor([[1, 0], [2, 2]]), torch.tensor([[[0, 1], [0, 1]], [[2, 2], [1, 1]]])
    assert reward(prompts.unsqueeze(1), responses).tolist() == [[0, 0], [2, 0]]
    assert reward(prompts.unsqueeze(1), responses).shape == (2, 2)
    assert len(calls) == 3


def test_get_reward_takes_names_and_callables_and_names_what_it_knows():
    assert sorting.get_reward("sorted_or_not") is sorting.sorted_or_not
    assert sorting.get_reward(max) is max
    with pytest.raises(ValueError, match=r"'sortedness' is unknown.*positions_right"):
        sorting.get_reward("sortedness")


def test_all_prompts_counts():
    assert sorting.all_prompts(3, 5).shape == (125, 3)
    distinct = sorting.all_prompts(3, 5, distinct=True)
    assert distinct.shape == (60, 3)
    assert all(len(set(row)) == 3 for row in distinct.tolist())
    with pytest.raises(ValueError, match="n=3 distinct numbers do not fit below vocab=2"):
        sorting.all_prompts(3, 2, distinct=True)


def test_split_prompts_never_holds_out_a_training_prompt():
    train, held_out = sorting.split_prompts(40, 20, seed=1)
    rows = {tuple(row) for row in torch.cat([train, held_out]).tolist()}
    assert train.shape == (40, 3)
    assert held_out.shape == (20, 3)
    assert len(rows) == 60
    assert torch.equal(sorting.split_prompts(40, 20, seed=1)[0], train)
    assert not torch.equal(sorting.split_prompts(40, 20, seed=2)[0], train)
    with pytest.raises(ValueError, match="= 61, but n=3, vocab=5 has 60"):
        sorting.split_prompts(41, 20)


def test_default_prompts_are_the_lectures():
    assert sorting.DEFAULT_PROMPTS.tolist() == [[1, 0, 2], [3, 2, 4], [1, 2, 3]]
