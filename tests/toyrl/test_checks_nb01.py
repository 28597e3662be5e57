from itertools import pairwise
from math import ceil, floor, log

import pytest
import torch

from toyrl import sorting
from toyrl.checks.nb01 import check_loophole_free_reward, check_process_reward, check_samples_needed

N = 3


def multiset_reward(prompt, response):
    inclusion = sum(min(prompt.count(v), response.count(v)) for v in set(prompt))
    return inclusion + sum(a <= b for a, b in pairwise(response))


@pytest.mark.parametrize("reward", [multiset_reward, sorting.plain_positions_right])
def test_rewards_with_partial_credit_and_no_loophole_pass(said, reward):
    assert said(check_loophole_free_reward, reward).startswith("Right")


def test_a_tensor_reward_is_a_number_too(said):
    def as_tensor(prompt, response):
        return torch.tensor(multiset_reward(prompt, response))

    assert said(check_loophole_free_reward, as_tensor).startswith("Right")


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        (lambda prompt, response: None, "Not done yet"),
        (lambda prompt, response: ..., "Not done yet"),
        (sorting.plain_inclusion_and_order, "A loophole. prompt [0, 0, 0]: the response [0, 0, 1] earns 5"),
        (sorting.plain_sorted_or_not, "no partial credit"),
        (lambda prompt, response: float(sum(response)), "The sorted response must earn the most"),
        (lambda prompt, response: -multiset_reward(prompt, response), "The sorted response must earn the most"),
        (lambda prompt, response: float(sorted(prompt) == sorted(response)), "A loophole"),
        (lambda prompt, response: [1, 2], "not a number"),
        (lambda prompt, response: float("nan"), "not a number"),
        (lambda prompt, response: response[3], "IndexError"),
        (1.0, "the function itself"),
    ],
)
def test_wrong_rewards_are_told_why(said, reward, words):
    message = said(check_loophole_free_reward, reward)
    assert words in message
    assert not message.startswith("Right")


def test_a_reward_that_sorts_its_arguments_does_no_harm(said):
    def sorts_in_place(prompt, response):
        prompt.sort()
        return sum(y == z for y, z in zip(response, prompt, strict=True))

    assert said(check_loophole_free_reward, sorts_in_place).startswith("Right")


def exact(n, vocab, chance):
    return log(1 - chance) / log(1 - vocab**-n)


def test_the_right_number_of_samples_passes(said):
    assert said(check_samples_needed, lambda *args: ceil(exact(*args))).startswith("Right")
    assert said(check_samples_needed, lambda *args: float(ceil(exact(*args)))).startswith("Right")


def test_the_number_of_the_text():
    assert ceil(exact(3, 5, 0.95)) == 373


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda n, vocab, chance: None, "Not done yet"),
        (lambda n, vocab, chance: vocab**n, "how long it takes on average"),
        (exact, "round up"),
        (lambda *args: floor(exact(*args)), "One short"),
        (lambda *args: floor(exact(*args)) + 2, "One too many"),
        (lambda n, vocab, chance: ceil(chance * vocab**n), "as if two samples could not both succeed"),
        (lambda n, vocab, chance: ceil(log(chance) / log(1 - vocab**-n)), "the chance of no reward"),
        (lambda n, vocab, chance: 7, "With 7 samples the chance of a reward is"),
        (lambda n, vocab, chance: -3, "Think of the chance"),
        (lambda n, vocab, chance: "many", "not a number"),
        (lambda n, vocab: vocab**n, "TypeError"),
    ],
)
def test_wrong_numbers_of_samples_are_told_why(said, answer, words):
    message = said(check_samples_needed, answer)
    assert words in message
    assert not message.startswith("Right")


def right_process(prompt, response):
    return [
        (0 if y in response[:t] else prompt.count(y)) + int(t > 0 and response[t - 1] <= y)
        for t, y in enumerate(response)
    ]


@pytest.mark.parametrize("convert", [list, tuple, torch.tensor])
def test_the_right_process_reward_passes(said, convert):
    assert said(check_process_reward, lambda *pair: convert(right_process(*pair))).startswith("Right")


def test_differences_of_any_score_pass(said):
    """The score of an unfinished response may be another one than the outcome reward's."""

    def shaped(prompt, response):
        def score(t):
            full = t == N
            return sorting.plain_inclusion_and_order(prompt, response) if full else float(response[:t] == prompt[:t])

        return [score(t + 1) - score(t) + (1.0 if t == 0 else 0) for t in range(N)]

    assert said(check_process_reward, shaped).startswith("Right")


def outcome(prompt, response):
    return sorting.plain_inclusion_and_order(prompt, response)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda prompt, response: None, "Not done yet"),
        (outcome, "Return a list of 3 numbers"),
        (lambda prompt, response: [outcome(prompt, response)], "1 numbers for 3 positions"),
        (lambda prompt, response: [outcome(prompt, response) / N] * N, "cannot know the future"),
        (lambda prompt, response: [0, 0, outcome(prompt, response)], "that is the outcome reward itself"),
        (lambda prompt, response: [int(y in prompt) for y in response], "too little"),
        (
            lambda prompt, response: [
                prompt.count(y) + int(t > 0 and response[t - 1] <= y) for t, y in enumerate(response)
            ],
            "too much",
        ),
        (
            lambda prompt, response: [
                int(x in response) + int(t > 0 and response[t - 1] <= response[t]) for t, x in enumerate(prompt)
            ],
            "cannot know the future",
        ),
        (lambda prompt, response: ["a", "b", "c"], "Return a list of 3 numbers"),
        (lambda prompt, response: {}["x"], "KeyError"),
    ],
)
def test_wrong_process_rewards_are_told_why(said, answer, words):
    message = said(check_process_reward, answer)
    assert words in message
    assert not message.startswith("Right")
