"""Arithmetic word problems in GSM8K's own format, made from a seed: the task that needs no download.

A problem is a story (a template), numbers that fit it, names and a thing. Its answer is worked out step by step:

    >>> problem = word_problems(1, seed=0, levels=2)[0]
    >>> print(problem.question)
    Tom has 13 cards. Sam has 6 fewer. How many cards do they have together?
    >>> print(problem.answer)
    Sam has 13-6=<<13-6=7>>7 cards.
    Together they have 13+7=<<13+7=20>>20 cards.
    #### 20

| level | steps | numbers in the question up to | results up to |
| ----- | ----- | ----------------------------- | ------------- |
| 1     | 1     | 10                            | 20            |
| 2     | 2     | 20                            | 20            |
| 3     | 3     | 20                            | 30            |
| 4     | 4     | 50                            | 99            |

Every number and every result is an integer of at least 2, so that the plurals are right.

Training and validation are disjoint by construction, and by more than their texts: a story with given numbers
belongs to one of the two, by a hash of both, whatever the names and the thing. A model that remembers its
training problems does not get a validation problem right by that. About one in five belongs to validation.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from grpo.data import Problem

NAMES = ("Tom", "Ann", "Ben", "Mia", "Sam", "Eva", "Leo", "Zoe")
THINGS = ("apples", "books", "cards", "coins", "cups", "eggs", "pens", "toys")
LEVEL_LIMITS = {1: (10, 20), 2: (20, 20), 3: (20, 30), 4: (50, 99)}  # largest number, largest result
DEFAULT_LEVELS = (1, 2, 3)
_SMALLEST = 2
_VALIDATION_SHARE = 5  # one story-with-numbers in so many

Split = Literal["train", "validation"]
Step = tuple[str, str, str, str]  # left, operator, right, sentence; s1 is the result of the first step


@dataclass(frozen=True)
class Story:
    """One template.

    Attributes:
        key: its name, which decides, with the numbers, the split: changing it moves problems between the splits.
        level: see the module's table.
        letters: the numbers' placeholders in the question, one letter each.
        question: text with {name}, {other}, {things} and the letters.
        steps: what is computed, in order; the last result is the answer. A sentence's {calc} is the calculation.
    """

    key: str
    level: int
    letters: str
    question: str
    steps: tuple[Step, ...]

    @property
    def castings(self) -> int:
        """How many choices of names and thing there are."""
        names = len(NAMES) * (len(NAMES) - 1) if "{other}" in self.question else len(NAMES)
        return names * len(THINGS)


STORIES = (
    Story(
        "gets", 1, "ab",
        "{name} has {a} {things} and gets {b} more. How many {things} does {name} have?",
        (("a", "+", "b", "{name} has {calc} {things}."),),
    ),
    Story(
        "loses", 1, "ab",
        "{name} has {a} {things} and loses {b}. How many {things} are left?",
        (("a", "-", "b", "There are {calc} {things} left."),),
    ),
    Story(
        "boxes", 1, "ab",
        "{name} has {a} boxes with {b} {things} each. How many {things} does {name} have?",
        (("a", "*", "b", "The boxes hold {calc} {things}."),),
    ),
    Story(
        "needs", 1, "ab",
        "{name} needs {a} {things} and has {b}. How many more {things} does {name} need?",
        (("a", "-", "b", "{name} needs {calc} more {things}."),),
    ),
    Story(
        "other", 1, "ab",
        "{name} has {a} {things}. {other} has {b} more. How many {things} does {other} have?",
        (("a", "+", "b", "{other} has {calc} {things}."),),
    ),
    Story(
        "gets-loses", 2, "abc",
        "{name} has {a} {things}, gets {b} more and loses {c}. How many {things} are left?",
        (
            ("a", "+", "b", "At first {name} has {calc} {things} in all."),
            ("s1", "-", "c", "There are {calc} {things} left."),
        ),
    ),
    Story(
        "boxes-gets", 2, "abc",
        "{name} has {a} boxes with {b} {things} each and gets {c} more. How many {things} does {name} have?",
        (
            ("a", "*", "b", "The boxes hold {calc} {things}."),
            ("s1", "+", "c", "With the new ones {name} has {calc} {things}."),
        ),
    ),
    Story(
        "together", 2, "ab",
        "{name} has {a} {things}. {other} has {b} more. How many {things} do they have together?",
        (
            ("a", "+", "b", "{other} has {calc} {things}."),
            ("a", "+", "s1", "Together they have {calc} {things}."),
        ),
    ),
    Story(
        "fewer", 2, "ab",
        "{name} has {a} {things}. {other} has {b} fewer. How many {things} do they have together?",
        (
            ("a", "-", "b", "{other} has {calc} {things}."),
            ("a", "+", "s1", "Together they have {calc} {things}."),
        ),
    ),
    Story(
        "gives", 2, "abc",
        "{name} has {a} {things} and gives {b} to {other} and {c} to a friend. How many {things} are left?",
        (
            ("a", "-", "b", "After the first gift {name} has {calc} {things}."),
            ("s1", "-", "c", "After the second there are {calc} {things} left."),
        ),
    ),
    Story(
        "shares", 2, "abc",
        "{name} has {a} {things}, loses {b} and shares the rest among {c} friends. How many {things} for each?",
        (
            ("a", "-", "b", "There are {calc} {things} to share."),
            ("s1", "/", "c", "Each friend gets {calc} {things}."),
        ),
    ),
    Story(
        "times", 3, "abc",
        "{name} has {a} {things}. {other} had {b} times as many and lost {c}. "
        "How many {things} do they have together?",
        (
            ("a", "*", "b", "{other} had {calc} {things}."),
            ("s1", "-", "c", "Now {other} has {calc} {things}."),
            ("a", "+", "s2", "Together they have {calc} {things}."),
        ),
    ),
    Story(
        "together-loses", 3, "abc",
        "{name} has {a} {things}. {other} has {b} more. Together they lose {c}. How many {things} are left?",
        (
            ("a", "+", "b", "{other} has {calc} {things}."),
            ("a", "+", "s1", "Together they have {calc} {things}."),
            ("s2", "-", "c", "There are {calc} {things} left."),
        ),
    ),
    Story(
        "days", 3, "abcd",
        "{name} gets {a} {things} a day for {b} days, loses {c} and gets {d} more. "
        "How many {things} does {name} have?",
        (
            ("a", "*", "b", "In {b} days {name} gets {calc} {things}."),
            ("s1", "-", "c", "After the loss there are {calc} {things}."),
            ("s2", "+", "d", "At last {name} has {calc} {things}."),
        ),
    ),
    Story(
        "boxes-bags", 3, "abcd",
        "{name} has {a} boxes with {b} {things} each and {c} bags with {d} {things} each. "
        "How many {things} does {name} have?",
        (
            ("a", "*", "b", "The boxes hold {calc} {things}."),
            ("c", "*", "d", "The bags hold {calc} {things}."),
            ("s1", "+", "s2", "In all {name} has {calc} {things}."),
        ),
    ),
    Story(
        "half", 3, "abc",
        "{name} has {a} {things}, gets {b} more, loses {c} and gives half of the rest to {other}. "
        "How many {things} does {other} get?",
        (
            ("a", "+", "b", "At first {name} has {calc} {things} in all."),
            ("s1", "-", "c", "After the loss there are {calc} {things}."),
            ("s2", "/", "2", "{other} gets {calc} {things}."),
        ),
    ),
    Story(
        "times-half", 4, "abc",
        "{name} has {a} {things}. {other} has {b} times as many. Together they lose {c} and share the rest. "
        "How many {things} for each?",
        (
            ("a", "*", "b", "{other} has {calc} {things}."),
            ("a", "+", "s1", "Together they have {calc} {things}."),
            ("s2", "-", "c", "After the loss there are {calc} {things}."),
            ("s3", "/", "2", "Each gets {calc} {things}."),
        ),
    ),
    Story(
        "double", 4, "abc",
        "{name} has {a} {things}. {other} has {b} more. A friend has as many as the two together. "
        "All three lose {c} in all. How many {things} are left?",
        (
            ("a", "+", "b", "{other} has {calc} {things}."),
            ("a", "+", "s1", "{name} and {other} have {calc} {things}."),
            ("s2", "+", "s2", "All three have {calc} {things}."),
            ("s3", "-", "c", "There are {calc} {things} left."),
        ),
    ),
    Story(
        "boxes-fewer", 4, "abc",
        "{name} has {a} boxes with {b} {things} each. {other} has {c} fewer {things}. "
        "They put all of them in 2 equal bags. How many {things} for each bag?",
        (
            ("a", "*", "b", "{name} has {calc} {things}."),
            ("s1", "-", "c", "{other} has {calc} {things}."),
            ("s1", "+", "s2", "Together they have {calc} {things}."),
            ("s3", "/", "2", "Each bag holds {calc} {things}."),
        ),
    ),
)  # fmt: skip


def _calculate(story: Story, numbers: tuple[int, ...]) -> list[tuple[int, str, int, int]] | None:
    """Return (left, operator, right, result) of each step that the first few numbers suffice for.

    None: a step is not exact or its result is out of the level's range, so no further number helps.
    """
    limit = LEVEL_LIMITS[story.level][1]
    values = dict(zip(story.letters, numbers, strict=False))
    done: list[tuple[int, str, int, int]] = []
    for index, (left_key, operator, right_key, _) in enumerate(story.steps, start=1):
        pair = [int(key) if key.isdigit() else values.get(key) for key in (left_key, right_key)]
        left, right = pair
        if left is None or right is None:
            break
        if operator == "/" and left % right:
            return None
        result = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}[operator]
        if not _SMALLEST <= result <= limit:
            return None
        values[f"s{index}"] = result
        done.append((left, operator, right, result))
    return done


def _fitting_numbers(story: Story, numbers: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yield every choice of numbers that starts with `numbers` and whose steps all stay in range."""
    if _calculate(story, numbers) is None:
        return
    if len(numbers) == len(story.letters):
        yield numbers
        return
    for value in range(_SMALLEST, LEVEL_LIMITS[story.level][0] + 1):
        yield from _fitting_numbers(story, (*numbers, value))


def _split_of(story: Story, numbers: tuple[int, ...]) -> Split:
    digest = hashlib.sha256(f"{story.key}:{','.join(map(str, numbers))}".encode()).digest()
    return "validation" if int.from_bytes(digest[:4], "big") % _VALIDATION_SHARE == 0 else "train"


@cache
def _numbers_of(story: Story, split: Split) -> tuple[tuple[int, ...], ...]:
    return tuple(numbers for numbers in _fitting_numbers(story) if _split_of(story, numbers) == split)


def _check_levels(levels: Sequence[int] | int) -> list[int]:
    if isinstance(levels, bool) or not isinstance(levels, int | Sequence) or isinstance(levels, str):
        raise ValueError(f"levels={levels!r} must be a level or a sequence of levels of {sorted(LEVEL_LIMITS)}")
    listed = [levels] if isinstance(levels, int) else list(levels)
    if not listed:
        raise ValueError(f"levels={levels!r} must name at least one level of {sorted(LEVEL_LIMITS)}")
    for level in listed:
        if isinstance(level, bool) or level not in LEVEL_LIMITS:
            raise ValueError(f"levels={levels!r}: unknown level {level!r}; known: {sorted(LEVEL_LIMITS)}")
    return listed


def count_word_problems(split: Split = "train", levels: Sequence[int] | int = DEFAULT_LEVELS) -> int:
    """Return how many distinct problems of these levels a split has.

    Raises:
        ValueError: unknown split or level.
    """
    if split not in ("train", "validation"):
        raise ValueError(f"unknown split={split!r}; known: ['train', 'validation']")
    wanted = set(_check_levels(levels))
    return sum(len(_numbers_of(story, split)) * story.castings for story in STORIES if story.level in wanted)


def _draw(story: Story, split: Split, rng: random.Random) -> Problem:
    """Return one problem of the story, all of the split's equally likely."""
    numbers = rng.choice(_numbers_of(story, split))
    name, other = rng.sample(NAMES, 2)
    fields: dict[str, object] = {"name": name, "other": other, "things": rng.choice(THINGS)}
    fields |= dict(zip(story.letters, numbers, strict=True))
    calculated = _calculate(story, numbers)
    assert calculated is not None, f"{story.key} {numbers} does not fit"
    lines = []
    for (left, operator, right, result), step in zip(calculated, story.steps, strict=True):
        calculation = f"{left}{operator}{right}"
        lines.append(step[3].format(calc=f"{calculation}=<<{calculation}={result}>>{result}", **fields))
    answer = calculated[-1][3]
    return Problem(
        question=story.question.format(**fields),
        answer="\n".join([*lines, f"#### {answer}"]),
        ground_truth=str(answer),
        level=str(story.level),
    )


def word_problems(
    n: int,
    seed: int = 0,
    split: Split = "train",
    levels: Sequence[int] | int = DEFAULT_LEVELS,
) -> list[Problem]:
    """Return n distinct word problems; the first k of n are the same for every n >= k.

    Args:
        n: how many, at least 1.
        seed: which ones, and in which order.
        split: "train" or "validation"; no question is in both, nor any story with the same numbers.
        levels: one level (1 to 4) or several. Each is drawn equally often until its problems run out; a level that
            is listed twice is drawn twice as often. Within a level every story is drawn equally often.

    Returns:
        Problems whose `level` is "1" to "4", whose answer is a rationale with GSM8K's `<<a+b=c>>` annotations
        and a last line `#### N`.

    Raises:
        ValueError: n, seed, split or levels is none of these, or there are fewer than n such problems.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise ValueError(f"n={n!r} must be an integer of at least 1")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ValueError(f"seed={seed!r} must be an integer")
    there_are = count_word_problems(split, levels)
    if n > there_are:
        raise ValueError(f"n={n}: there are only {there_are} distinct {split} problems of levels={levels!r}")
    rng = random.Random(f"{split} {seed}")  # a text, so that the two splits do not draw alike
    open_levels = _check_levels(levels)
    open_stories = {level: [s for s in STORIES if s.level == level] for level in open_levels}
    left = {story.key: len(_numbers_of(story, split)) * story.castings for story in STORIES}
    problems: dict[str, Problem] = {}
    while len(problems) < n:
        level = rng.choice(open_levels)
        while True:  # until it is a new one: drawing the level anew would make small levels rarer than promised
            story = rng.choice(open_stories[level])
            problem = _draw(story, split, rng)
            if problem.question not in problems:
                break
        problems[problem.question] = problem
        left[story.key] -= 1
        if not left[story.key]:  # every problem of the story is drawn: looking for more would never end
            open_stories[level].remove(story)
            if not open_stories[level]:
                open_levels = [one for one in open_levels if one != level]
    return list(problems.values())
