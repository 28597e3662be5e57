import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.grading import question_only_reward_fn, r1_zero_reward_fn
from grpo.grading_steps import grading_steps


@pytest.mark.parametrize(
    ("response", "refused"),
    [
        (" 9+9 </think> <answer> 18 </answer>", None),
        ("</think>\n<answer>**18**</answer> and more <answer> 3 </answer>", None),
        (" 9+9 </think> <answer> 18", "closed: no </answer>"),
        (" 18 </answer>", "tags in order: no </think>, and no <answer>"),
        (" 9 <answer> 18 </answer>", "tags in order: no </think> before <answer>"),
        (" 9 </think> 18 </answer>", "tags in order: no <answer> after </think>"),
        (" <answer> 18 </think> </answer>", "tags in order: no <answer> after </think>, but one before it"),
        (" </think> so <answer> 18 </answer>", "tags in order: 'so' stands between </think> and <answer>"),
        (" </think> <answer>  </answer>", "something in it: nothing between the tags"),
        (" </think> <answer> 9+9 </answer>", "one number: '9+9' states none, several, or something to work out"),
        (
            " </think> <answer> eighteen </answer>",
            "one number: 'eighteen' states none, several, or something to work out",
        ),
        (" </think> <answer> 17 </answer>", "right: 17 is not 18"),
        (f" </think> <answer> 18 {'!' * 600} </answer>", "short: 603 characters; the most is 512"),
    ],
)
def test_the_refusing_step_of_r1_zero(response, refused):
    steps = grading_steps(response, "18")
    assert all(step.passed for step in steps[:-1])
    assert (None if steps[-1].passed else f"{steps[-1].name}: {steps[-1].detail}") == refused


@pytest.mark.parametrize(
    ("response", "refused"),
    [
        (r"So \boxed{18}.", None),
        (r"So \boxed{18", r"boxed: no \boxed{...} that is closed and holds something"),
        ("So 18.", r"boxed: no \boxed{...} that is closed and holds something"),
        (r"So \boxed{17 or 18}.", "one number: '17 or 18' states none, several, or something to work out"),
    ],
)
def test_the_refusing_step_of_question_only(response, refused):
    steps = grading_steps(response, "18", question_only_reward_fn)
    assert (None if steps[-1].passed else f"{steps[-1].name}: {steps[-1].detail}") == refused


def test_a_ground_truth_in_words_is_compared_as_text():
    names = [(step.name, step.passed) for step in grading_steps("</think> <answer> blue  sky </answer>", "blue sky")]
    assert names == [("closed", True), ("tags in order", True), ("something in it", True), ("right", True)]


PIECES = st.sampled_from(
    ["</think>", "<answer>", "</answer>", " ", "\n", "18", "17", "9+9", "$", "18 dollars", r"\boxed{", "}", "so", "**"]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=9).map("".join))
def test_the_steps_agree_with_the_reward_functions(response):
    for reward_fn, format_steps in ((r1_zero_reward_fn, 3), (question_only_reward_fn, 2)):
        rewards = reward_fn(response, "18")
        steps = grading_steps(response, "18", reward_fn)
        assert all(step.passed for step in steps) == (rewards["reward"] == 1), steps
        in_format = sum(step.passed for step in steps[:format_steps]) == format_steps
        assert in_format == (rewards["format_reward"] == 1), steps


def test_other_reward_functions_have_no_known_steps():
    with pytest.raises(ValueError, match="the steps are known of r1_zero_reward_fn"):
        grading_steps("18", "18", lambda response, truth: {})
