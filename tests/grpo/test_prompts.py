from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo import prompts
from grpo.grading import parse_number, question_only_reward_fn, r1_zero_reward_fn
from grpo.prompts import load_prompt, prompt_names

GSM8K_PROMPTS = ("question_only", "r1_zero", "r1_zero_three_shot_gsm8k")


def test_the_three_prompts_are_there():
    assert set(GSM8K_PROMPTS) <= set(prompt_names())
    assert prompt_names() == sorted(prompt_names())


@pytest.mark.parametrize("name", prompt_names())
def test_every_prompt_loads_and_follows_the_rule(name):
    prompt = load_prompt(name)
    text = prompt.render("What is 1 + 1?")
    assert text.count("What is 1 + 1?") == 1
    assert "{question}" not in text
    assert text == text.rstrip(), "a base model continues best from a text without white space at its end"
    if text.endswith("<think>"):
        assert (prompt.stop, prompt.reward_fn) == (("</answer>",), r1_zero_reward_fn)
    else:
        assert (prompt.stop, prompt.reward_fn) == ((), question_only_reward_fn)


def test_r1_zero_is_the_published_template():
    assert load_prompt("r1_zero").render("Q?") == (
        "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. "
        "The assistant first thinks about the reasoning process in the mind and then provides the user with the "
        "answer. The reasoning process and answer are enclosed within <think> </think> and <answer> </answer> "
        "tags, respectively, i.e., <think> reasoning process here </think> <answer> answer here </answer>.\n"
        "User: Q?\n"
        "Assistant: <think>"
    )


def test_question_only_asks_for_a_box_and_has_no_stop_string():
    prompt = load_prompt("question_only")
    assert r"\boxed{}" in prompt.template
    assert "<think>" not in prompt.template
    assert prompt.stop == ()


def test_three_shot_examples_are_worked_in_the_format_and_right():
    plain, shots = load_prompt("r1_zero"), load_prompt("r1_zero_three_shot_gsm8k")
    preamble, _, _ = plain.template.partition("User: {question}")
    assert shots.template.startswith(preamble)
    assert shots.template.endswith("User: {question}\nAssistant: <think>")
    examples = re.findall(r"^User: (.+)\nAssistant: <think>(.+)$", shots.template, re.MULTILINE)
    # Worked by hand: (6*24 - 100) / 2; 4 * (5*14 + 18); (2*80 + 3*20) * 9/10.
    for (question, response), gold in zip(examples, ["22", "352", "198"], strict=True):
        assert question.endswith("?")
        assert r1_zero_reward_fn(response, gold, strict=True)["reward"] == 1
    working = " ".join(response for _, response in examples)
    steps = re.findall(r"\$?(\d+) ([-+*/]) \$?(\d+) = \$?(\d+)", working)
    assert len(steps) == 14
    for left, sign, right, result in steps:
        a, b = int(left), int(right)
        assert {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[sign] == parse_number(result)


@given(st.text())
def test_a_question_survives_as_it_is(question):
    prompt = load_prompt("r1_zero")
    before, after = prompt.template.split("{question}")
    assert prompt.render(question) == before + question + after


@pytest.mark.parametrize("question", ["{x} and {}", "{question}", "{{question}} %s \\boxed{1} {0}", "a\n\\1 \\g<0>"])
def test_braces_and_escapes_survive(question):
    assert load_prompt("r1_zero").render(question).endswith(f".\nUser: {question}\nAssistant: <think>")


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"name='r1_one'; known: \[.*'question_only', 'r1_zero'"):
        load_prompt("r1_one")
    with pytest.raises(ValueError, match="unknown prompt"):
        load_prompt("../prompts/r1_zero")


def test_a_path_to_a_prompt_file(tmp_path):
    path = tmp_path / "mine.prompt"
    path.write_text("Q: {question}\nA: <think>\n", encoding="utf-8")
    prompt = load_prompt(str(path))
    assert (prompt.name, prompt.render("é?")) == ("mine", "Q: é?\nA: <think>")
    assert prompt.stop == ("</answer>",)
    with pytest.raises(FileNotFoundError, match=r"no prompt file at .*gone\.prompt"):
        load_prompt(str(tmp_path / "gone.prompt"))


@pytest.mark.parametrize(("template", "count"), [("no slot", 0), ("{question} {question}", 2)])
def test_a_template_needs_the_slot_once(tmp_path, template, count):
    path = tmp_path / "bad.prompt"
    path.write_text(template)
    with pytest.raises(ValueError, match=rf"bad\.prompt must have {{question}} exactly once, not {count} times"):
        load_prompt(str(path))


def test_packaged_templates_come_first(tmp_path, monkeypatch):
    packaged = tmp_path / "grpo" / "_prompts"
    packaged.mkdir(parents=True)
    (packaged / "only.prompt").write_text("{question}")
    monkeypatch.setattr(prompts, "__file__", str(tmp_path / "grpo" / "prompts.py"))
    assert prompt_names() == ["only"]
    assert load_prompt("only").render("x") == "x"
    assert Path(prompts.__file__).parent == packaged.parent


@pytest.mark.parametrize("end", ["", "\n", " \n", "\n\n", " "])
def test_white_space_after_the_opening_tag_changes_no_reward(tmp_path, end):
    path = tmp_path / "own.prompt"
    path.write_text("{question} <think>" + end)
    prompt = load_prompt(str(path))
    assert prompt.stop == ("</answer>",)
    assert prompt.reward_fn is r1_zero_reward_fn


def test_a_template_that_is_not_utf8_is_named(tmp_path):
    path = tmp_path / "own.prompt"
    path.write_bytes(b"\xe9 {question}")
    with pytest.raises(ValueError, match=r"own\.prompt is not UTF-8"):
        load_prompt(str(path))
