"""The generated word problems: right arithmetic, disjoint splits, the same for the same seed."""

from __future__ import annotations

import doctest
import re

import pytest

import grpo.words
from grpo.data import Problem, parse_ground_truth
from grpo.words import (
    LEVEL_LIMITS,
    STORIES,
    _calculate,
    count_word_problems,
    word_problems,
)

ALL_LEVELS = (1, 2, 3, 4)


def check_arithmetic(problem: Problem) -> None:
    """Evaluate each `x=<<x=r>>r` of the rationale by other means than the generator's."""
    *lines, last = problem.answer.split("\n")
    assert len(lines) == int(problem.level)  # one line a step, as many steps as the level
    largest_number, largest_result = LEVEL_LIMITS[int(problem.level)]
    known = {int(number) for number in re.findall(r"\d+", problem.question)} | {2}
    assert max(known) <= largest_number
    for line in lines:
        match = re.search(r" (\d+)([-+*/])(\d+)=<<(\d+)([-+*/])(\d+)=(\d+)>>(\d+)( |\.)", line)
        assert match, line
        left, operator, right, *again, result, shown, _ = match.groups()
        assert again == [left, operator, right], line
        assert shown == result, line
        x, y, r = int(left), int(right), int(result)
        assert {x, y} <= known, f"{line!r} uses a number from nowhere"
        # Inverse operations, so that a slip in the generator's table is not repeated here.
        assert {"+": r - y == x, "-": r + y == x, "*": r % y == 0 and r // y == x, "/": r * y == x}[operator]
        assert 2 <= r <= largest_result
        known.add(r)
    assert last == f"#### {r}"
    assert problem.ground_truth == str(r) == parse_ground_truth(problem.answer)


def test_every_step_of_every_rationale_is_right():
    problems = word_problems(3000, seed=5, levels=ALL_LEVELS)
    for problem in problems:
        check_arithmetic(problem)
    assert {problem.level for problem in problems} == {"1", "2", "3", "4"}


BY_HAND = [  # story, its text with these numbers, the answer worked out by reading the text
    ("gets", "Tom has 3 pens and gets 4 more. How many pens does Tom have?", (3, 4), 7),
    ("loses", "Tom has 9 pens and loses 4. How many pens are left?", (9, 4), 5),
    ("boxes", "Tom has 3 boxes with 6 pens each. How many pens does Tom have?", (3, 6), 18),
    ("needs", "Tom needs 10 pens and has 4. How many more pens does Tom need?", (10, 4), 6),
    ("other", "Tom has 8 pens. Mia has 7 more. How many pens does Mia have?", (8, 7), 15),
    ("gets-loses", "Tom has 9 pens, gets 8 more and loses 14. How many pens are left?", (9, 8, 14), 3),
    ("boxes-gets", "Tom has 3 boxes with 4 pens each and gets 8 more. How many pens does Tom have?", (3, 4, 8), 20),
    ("together", "Tom has 5 pens. Mia has 6 more. How many pens do they have together?", (5, 6), 16),
    ("fewer", "Tom has 11 pens. Mia has 5 fewer. How many pens do they have together?", (11, 5), 17),
    ("gives", "Tom has 20 pens and gives 6 to Mia and 9 to a friend. How many pens are left?", (20, 6, 9), 5),
    (
        "shares",
        "Tom has 19 pens, loses 4 and shares the rest among 5 friends. How many pens for each?",
        (19, 4, 5),
        3,
    ),
    (
        "times",
        "Tom has 4 pens. Mia had 5 times as many and lost 8. How many pens do they have together?",
        (4, 5, 8),
        16,
    ),
    ("together-loses", "Tom has 7 pens. Mia has 8 more. Together they lose 13. How many pens are left?", (7, 8, 13), 9),
    (
        "days",
        "Tom gets 5 pens a day for 6 days, loses 12 and gets 9 more. How many pens does Tom have?",
        (5, 6, 12, 9),
        27,
    ),
    (
        "boxes-bags",
        "Tom has 2 boxes with 7 pens each and 3 bags with 4 pens each. How many pens does Tom have?",
        (2, 7, 3, 4),
        26,
    ),
    (
        "half",
        "Tom has 12 pens, gets 14 more, loses 6 and gives half of the rest to Mia. How many pens does Mia get?",
        (12, 14, 6),
        10,
    ),
    (
        "times-half",
        "Tom has 12 pens. Mia has 4 times as many. Together they lose 20 and share the rest. How many pens for each?",
        (12, 4, 20),
        20,
    ),
    (
        "double",
        "Tom has 9 pens. Mia has 13 more. A friend has as many as the two together. All "
        "three lose 20 in all. How many pens are left?",
        (9, 13, 20),
        42,
    ),
    (
        "boxes-fewer",
        "Tom has 6 boxes with 7 pens each. Mia has 10 fewer pens. They put all of them "
        "in 2 equal bags. How many pens for each bag?",
        (6, 7, 10),
        37,
    ),
]


@pytest.mark.parametrize(("key", "question", "numbers", "answer"), BY_HAND)
def test_each_story_means_what_its_steps_compute(key, question, numbers, answer):
    (story,) = [story for story in STORIES if story.key == key]
    lettered = dict(zip(story.letters, numbers, strict=True))
    assert story.question.format(name="Tom", other="Mia", things="pens", **lettered) == question
    calculated = _calculate(story, numbers)
    assert calculated is not None
    assert calculated[-1][3] == answer


def test_the_table_by_hand_has_every_story():
    assert [row[0] for row in BY_HAND] == [story.key for story in STORIES]


def test_hand_computed_problems_in_full():
    """The first problems of seed 0, checked by reading them. A change here changes every recorded run."""
    first, second = word_problems(2, seed=0, levels=2)
    assert first == Problem(
        "Tom has 13 cards. Sam has 6 fewer. How many cards do they have together?",
        "Sam has 13-6=<<13-6=7>>7 cards.\nTogether they have 13+7=<<13+7=20>>20 cards.\n#### 20",
        "20",
        "2",
    )
    assert second == Problem(
        "Tom has 12 cards, gets 2 more and loses 4. How many cards are left?",
        "At first Tom has 12+2=<<12+2=14>>14 cards in all.\nThere are 14-4=<<14-4=10>>10 cards left.\n#### 10",
        "10",
        "2",
    )


def test_the_documentation_shows_what_happens():
    assert doctest.testmod(grpo.words).failed == 0


def test_stories_are_varied_and_distinct():
    assert len(STORIES) >= 11
    assert len({story.key for story in STORIES}) == len(STORIES)
    questions = [story.question for story in STORIES]
    assert len(set(questions)) == len(STORIES)
    assert {story.level for story in STORIES} == set(LEVEL_LIMITS)


def without_names(problem: Problem) -> str:
    words = r"\b(Tom|Ann|Ben|Mia|Sam|Eva|Leo|Zoe|apples|books|cards|coins|cups|eggs|pens|toys)\b"
    return re.sub(words, "_", problem.question)


@pytest.mark.parametrize("level", ALL_LEVELS)
def test_splits_are_disjoint_as_questions_and_as_stories_with_numbers(level):
    train = word_problems(20_000, split="train", levels=level)
    validation = word_problems(2000, split="validation", levels=level)
    assert not {p.question for p in train} & {p.question for p in validation}
    assert not {without_names(p) for p in train} & {without_names(p) for p in validation}
    # The numbers differ, the stories do not: each of the level's is in both.
    stories = [{re.sub(r"\d+", "#", without_names(p)) for p in problems} for problems in (train, validation)]
    assert stories[0] == stories[1]
    assert len(stories[0]) == sum(story.level == level for story in STORIES)


def test_validation_is_about_a_fifth():
    train, validation = count_word_problems("train", ALL_LEVELS), count_word_problems("validation", ALL_LEVELS)
    assert 0.17 < validation / (train + validation) < 0.23


def test_first_of_many_are_the_same_as_few():
    assert word_problems(300, seed=3)[:7] == word_problems(7, seed=3)
    assert word_problems(50, seed=3, split="validation")[:9] == word_problems(9, seed=3, split="validation")


def test_seed_decides():
    assert word_problems(20, seed=1) == word_problems(20, seed=1)
    assert word_problems(20, seed=1) != word_problems(20, seed=2)
    texts = [{p.question for p in word_problems(500, seed=seed)} for seed in (1, 2)]
    assert len(texts[0] & texts[1]) < 50


def test_questions_are_distinct():
    problems = word_problems(5000, levels=1)
    assert len({problem.question for problem in problems}) == 5000


def test_levels_are_drawn_equally_and_a_repeated_one_twice():
    levels = [problem.level for problem in word_problems(3000)]
    assert all(900 < levels.count(level) < 1100 for level in "123")
    levels = [problem.level for problem in word_problems(3000, levels=(1, 2, 2))]
    assert 900 < levels.count("1") < 1100
    assert "3" not in levels


def test_all_problems_can_be_had_and_not_one_more():
    there_are = count_word_problems("validation", 1)
    # By hand, from the level's rules: sums of two numbers from 2 to 10 (81 pairs), differences of at least 2
    # (28 pairs with a - b >= 2), products up to 20; a story has 8 names x 8 things, or 8 x 7 x 8 with a second name.
    everything = there_are + count_word_problems("train", 1)
    products = sum(1 for a in range(2, 11) for b in range(2, 11) if a * b <= 20)
    assert everything == 64 * (81 + 28 + 28 + products) + 448 * 81
    problems = word_problems(there_are, split="validation", levels=1)
    assert len({problem.question for problem in problems}) == there_are
    with pytest.raises(ValueError, match=rf"n={there_are + 1}.*only {there_are} distinct validation"):
        word_problems(there_are + 1, split="validation", levels=1)


def test_a_level_that_runs_out_leaves_the_others():
    ones = count_word_problems("validation", 1)
    problems = word_problems(2 * ones + 5000, split="validation", levels=(1, 2))
    assert sum(problem.level == "1" for problem in problems) == ones


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n=0 must be an integer of at least 1"),
        ({"n": -3}, "n=-3 must be an integer of at least 1"),
        ({"n": 2.0}, "n=2.0 must be an integer"),
        ({"n": True}, "n=True must be an integer"),
        ({"n": 1, "seed": "a"}, "seed='a' must be an integer"),
        ({"n": 1, "split": "test"}, "unknown split='test'; known: ['train', 'validation']"),
        ({"n": 1, "levels": 9}, "unknown level 9; known: [1, 2, 3, 4]"),
        ({"n": 1, "levels": (1, 0)}, "unknown level 0; known: [1, 2, 3, 4]"),
        ({"n": 1, "levels": ()}, "levels=() must name at least one level"),
        ({"n": 1, "levels": "12"}, "levels='12' must be a level or a sequence of levels"),
        ({"n": 1, "levels": None}, "levels=None must be a level or a sequence of levels"),
        ({"n": 1, "levels": (1, "2")}, "unknown level '2'"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        word_problems(**arguments)
