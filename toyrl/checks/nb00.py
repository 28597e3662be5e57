"""Check of notebook 00: a first reward, 1 for the sorted prompt and 0 for everything else.

The check takes the learner's function, prints one message and returns nothing. It raises for no answer, however wrong.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

from toyrl.sorting import plain_sorted_or_not

N, VOCAB = 3, 5
"""The check visits every prompt and every response of three numbers from 0 to 4: 125 times 125 pairs."""


def check_sorted_reward(reward: Callable[[list[int], list[int]], Any]) -> None:
    """Print whether a function pays 1 for the sorted prompt and 0 for every other response, on every pair."""
    if not callable(reward):
        print(f"Give the check the function itself, without calling it; it got {reward!r}.")
        return
    try:
        print(_judge(reward))
    except Exception as error:  # the learner's function may raise anything
        print(f"Your function stopped with {type(error).__name__}: {error}")


def _judge(reward: Callable[[list[int], list[int]], Any]) -> str:
    for prompt, response in product(product(range(VOCAB), repeat=N), repeat=2):
        given = list(prompt)
        value = reward(given, list(response))
        case = f"prompt {list(prompt)}, response {list(response)}"
        if value is None or value is ...:
            return "Not done yet: the reward returns nothing. Return 1 or 0 for each prompt and response."
        if given != list(prompt):
            return (
                f"{case}: your function changed the prompt to {given}. sorted(...) makes a new list, .sort() does not."
            )
        right = plain_sorted_or_not(prompt, response)
        if value == right:
            continue
        start = f"{case}: you pay {value!r}, should be {right:g}."
        if right:
            return f"{start} This is the sorted prompt: it earns the 1."
        if list(response) == sorted(response) and sorted(response) != sorted(prompt):
            return f"{start} The response is in order, but these are not the prompt's numbers. Look at the prompt too."
        if sorted(response) == sorted(prompt):
            return f"{start} The numbers are the prompt's, but not in order."
        return f"{start} This is not the sorted prompt, which is {sorted(prompt)}."
    return f"Right: 1 for the sorted prompt, 0 for everything else, on all {VOCAB ** (2 * N)} pairs."
