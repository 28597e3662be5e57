import pytest

from toyrl.checks.nb00 import check_sorted_reward
from toyrl.sorting import plain_positions_right, plain_sorted_or_not


@pytest.mark.parametrize(
    "answer",
    [
        plain_sorted_or_not,
        lambda prompt, response: response == sorted(prompt),
        lambda prompt, response: 1 if response == sorted(prompt) else 0,
    ],
)
def test_the_right_reward_passes(said, answer):
    assert said(check_sorted_reward, answer).startswith("Right")


def sorts_in_place(prompt, response):
    prompt.sort()
    return float(prompt == response)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda prompt, response: None, "Not done yet"),
        (lambda prompt, response: ..., "Not done yet"),
        (lambda prompt, response: float(response == sorted(response)), "Look at the prompt too"),
        (lambda prompt, response: float(sorted(response) == sorted(prompt)), "but not in order"),
        (lambda prompt, response: float(response == prompt), "it earns the 1"),
        (lambda prompt, response: 0.0, "it earns the 1"),
        (
            lambda prompt, response: float(response != sorted(response) or response == sorted(prompt)),
            "This is not the sorted prompt",
        ),
        (plain_positions_right, "you pay 3.0, should be 1"),
        (lambda prompt, response: 1 + float(response == sorted(prompt)), "should be 1"),
        (lambda prompt, response: float(set(response) == set(prompt)), "but not in order"),
        (sorts_in_place, "changed the prompt"),
        (lambda prompt, response: response[3], "IndexError"),
        (lambda prompt: 1, "TypeError"),
        (1.0, "the function itself"),
    ],
)
def test_wrong_rewards_are_told_why(said, answer, words):
    message = said(check_sorted_reward, answer)
    assert words in message
    assert not message.startswith("Right")
