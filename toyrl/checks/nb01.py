"""Checks of notebook 01: a reward without loopholes, samples until the first reward, an outcome made a process.

Each check takes the learner's function, prints one message and returns nothing. It raises for no answer, however wrong.
"""

from collections.abc import Callable, Sequence
from itertools import product
from math import ceil, floor, isfinite, log
from numbers import Real
from typing import Any

from toyrl.sorting import PlainReward, plain_inclusion_and_order

N, VOCAB = 3, 5
"""The checks visit every prompt and every response of three numbers from 0 to 4: 125 times 125 pairs."""

SAMPLE_CASES = ((3, 5, 0.5), (3, 5, 0.95), (2, 4, 0.9), (6, 10, 0.95), (1, 2, 0.8))
"""(n, vocab, chance) of `check_samples_needed`; none lies on a boundary where rounding could decide."""

Row = tuple[int, ...]


def check_loophole_free_reward(reward: Callable[[list[int], list[int]], Any]) -> None:
    """Print whether a reward gives partial credit and pays its maximum for the sorted prompt alone, on every prompt."""
    print(_judge(_loophole_free_reward, reward))


def check_samples_needed(samples_needed: Callable[[int, int, float], Any]) -> None:
    """Print whether a function gives the fewest samples that earn a first reward with at least the chance asked for."""
    print(_judge(_samples_needed, samples_needed))


def check_process_reward(
    process_reward: Callable[[list[int], list[int]], Any], outcome: PlainReward = plain_inclusion_and_order
) -> None:
    """Print whether a process reward sums to the outcome reward, and credits each token when it is written."""
    print(_judge(lambda answer: _process_reward(answer, outcome), process_reward))


def _judge(judge: Callable[[Any], str], answer: Any) -> str:
    """Return the judge's message; a fault in the learner's function becomes a message too."""
    if not callable(answer):
        return f"Give the check the function itself, without calling it; it got {_short(answer)}."
    try:
        return judge(answer)
    except Exception as error:  # the learner's function may raise anything
        return f"Your function stopped with {type(error).__name__}: {error}"


def _loophole_free_reward(reward: Callable[[list[int], list[int]], Any]) -> str:
    rows = list(product(range(VOCAB), repeat=N))
    best = loophole = flat = None
    for prompt in rows:
        earned: dict[Row, float] = {}
        for response in rows:
            value = reward(list(prompt), list(response))
            if value is None or value is ...:
                return "Not done yet: the reward returns nothing. Return a number for each prompt and response."
            if not _is_number(value):
                return f"prompt {list(prompt)}, response {list(response)}: the reward is {_short(value)}, not a number."
            earned[response] = float(value)
        target = tuple(sorted(prompt))
        rivals = [response for response in rows if response != target and earned[response] >= earned[target]]
        if rivals:
            rival = max(rivals, key=lambda response: earned[response])
            if earned[rival] > earned[target]:
                best = best or (prompt, target, rival, earned)
            else:
                loophole = loophole or (prompt, target, rival, earned)
        if flat is None and len(set(earned.values())) < 3:
            flat = (prompt, earned)
    if best:
        prompt, target, rival, earned = best
        return (
            f"prompt {list(prompt)}: the response {list(rival)} earns {earned[rival]:g}, and the sorted one, "
            f"{list(target)}, only {earned[target]:g}. The sorted response must earn the most."
        )
    if loophole:
        prompt, target, rival, earned = loophole
        return (
            f"A loophole. prompt {list(prompt)}: the response {list(rival)} earns {earned[rival]:g}, as much as the "
            f"sorted one, {list(target)}."
        )
    if flat:
        prompt, earned = flat
        return (
            f"No loophole, but no partial credit either: on prompt {list(prompt)} the reward takes the values "
            f"{', '.join(f'{value:g}' for value in sorted(set(earned.values())))} only. "
            "A response that is nearly sorted should earn something in between."
        )
    return (
        f"Right: on each of the {len(rows)} prompts only the sorted response earns the maximum, and others earn a part."
    )


def _samples_needed(samples_needed: Callable[[int, int, float], Any]) -> str:
    for n, vocab, chance in SAMPLE_CASES:
        answer = samples_needed(n, vocab, chance)
        if answer is None or answer is ...:
            return "Not done yet: samples_needed returns nothing. Return a number of samples."
        asked = f"samples_needed({n}, {vocab}, {chance})"
        if not _is_number(answer):
            return f"{asked} is {_short(answer)}, not a number."
        p = vocab**-n
        exact = log(1 - chance) / log(1 - p)
        right = ceil(exact)
        if answer == right:
            continue
        start = f"{asked} is {answer:g}, should be {right}."
        if abs(answer - exact) < 1e-6 * exact:
            return f"{start} The formula is right, but a sample is drawn whole or not at all: round up."
        if answer == floor(exact):
            return (
                f"{start} One short: with {answer:g} samples the chance is {1 - (1 - p) ** answer:.4f}, below {chance}."
            )
        if answer == right + 1:
            return f"{start} One too many: {right} samples already have the chance {1 - (1 - p) ** right:.4f}."
        if abs(answer - vocab**n) < 1e-6 * vocab**n:
            return (
                f"{start} That is how long it takes on average. By then a reward has come with the chance "
                f"1 - (1 - p)^{answer:g} = {1 - (1 - p) ** answer:.2f}, not {chance}."
            )
        if abs(answer - chance / p) < 1.5:
            return f"{start} You added the samples' chances, as if two samples could not both succeed. Multiply misses."
        if abs(answer - log(chance) / log(1 - p)) < 1.5:
            return (
                f"{start} You solved (1 - p)^k = {chance}, the chance of no reward. What is asked is the chance of one."
            )
        hint = " (all k samples miss with probability (1 - p)^k)"
        if 0 < answer < 1e12:
            return f"{start} With {answer:g} samples the chance of a reward is {1 - (1 - p) ** answer:.3f}{hint}."
        return f"{start} Think of the chance that all samples miss{hint}."
    return "Right: the smallest k with 1 - (1 - p)^k at or above the chance asked for, p = vocab^(-n)."


def _process_reward(process_reward: Callable[[list[int], list[int]], Any], outcome: PlainReward) -> str:
    rows = list(product(range(VOCAB), repeat=N))
    at_the_end = True
    peeks = differs = None
    for prompt in rows:
        credit_of: dict[Row, tuple[Row, float]] = {}  # the state after a token -> (a response through it, the credit)
        for response in rows:
            credits = process_reward(list(prompt), list(response))
            if credits is None or credits is ...:
                return "Not done yet: the process reward returns nothing. Return a list, one number a position."
            case = f"prompt {list(prompt)}, response {list(response)}"
            values = credits.tolist() if hasattr(credits, "tolist") else credits
            if not isinstance(values, Sequence) or isinstance(values, str) or not all(map(_is_number, values)):
                return f"{case}: you return {_short(credits)}. Return a list of {N} numbers, one a position."
            if len(values) != N:
                return f"{case}: you return {len(values)} numbers for {N} positions. Every token needs a credit of its own."
            at_the_end = at_the_end and not any(values[:-1])
            for t, value in enumerate(values):
                other, known = credit_of.setdefault(response[: t + 1], (response, value))
                if peeks is None and abs(known - value) > 1e-6:
                    peeks = (prompt, other, response, t, known, value)
            if differs is None and abs(sum(values) - outcome(prompt, response)) > 1e-6:
                differs = (case, values, outcome(prompt, response))
    if peeks:
        prompt, other, response, t, known, value = peeks
        return (
            f"prompt {list(prompt)}: position {t} gets {known:g} in {list(other)} and {value:g} in {list(response)}, "
            f"though the two are the same up to there. A credit given when the token is written cannot know the future."
        )
    if differs:
        case, values, right = differs
        listed = ", ".join(f"{value:g}" for value in values)
        advice = (
            "too much: is a prompt token paid twice?" if sum(values) > right else "too little: is something not paid?"
        )
        return (
            f"{case}: the credits [{listed}] sum to {sum(values):g}, the outcome reward is {right:g}. That is {advice}"
        )
    if at_the_end:
        return "The sums are right, but all credit still comes with the last token: that is the outcome reward itself."
    return (
        f"Right: for all {len(rows) ** 2} pairs the credits sum to the outcome reward, so the optimum is the same, "
        "and each is given when its token is written."
    )


def _is_number(value: Any) -> bool:
    if hasattr(value, "item") and getattr(value, "numel", lambda: getattr(value, "size", 0))() == 1:
        value = value.item()
    return isinstance(value, Real) and isfinite(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
