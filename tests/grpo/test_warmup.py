"""The supervised warm-up: its corpus, its training loop, and the checkpoint it left in data/tiny."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import grpo.warmup
from grpo.data import Problem
from grpo.prompts import load_prompt
from grpo.supervised import learning_rate_at, pad_rows
from grpo.tiny import build_model
from grpo.warmup import (
    MIXTURES,
    STYLES,
    Corpus,
    WarmupSettings,
    broken_response,
    guess_response,
    measure,
    mixed_response,
    right_response,
    slip_response,
    train_stage,
    warmup,
    worked_steps,
)
from grpo.words import word_problems

FOLDER = Path(__file__).resolve().parents[2] / "data" / "tiny"
TOKENIZER = AutoTokenizer.from_pretrained(FOLDER)
PROMPTS = {style: load_prompt(style) for style in STYLES}
PROBLEM = Problem(
    question="Tom has 12 cards, gets 2 more and loses 4. How many cards are left?",
    answer="He has 12+2=<<12+2=14>>14 cards.\nThere are 14-4=<<14-4=10>>10 left.\n#### 10",
    ground_truth="10",
    level="2",
)


def test_worked_steps_are_those_of_the_annotations():
    assert worked_steps(PROBLEM) == ["12+2=14", "14-4=10"]


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("tiny_r1_zero", " 12+2=14, 14-4=10 </think> <answer> 10 </answer>"),
        ("tiny_r1_zero_three_shot", " 12+2=14, 14-4=10 </think> <answer> 10 </answer>"),
        ("tiny_question_only", " 12+2=14, 14-4=10 \\boxed{10}"),
    ],
)
def test_right_response_in_each_style(style, expected):
    assert right_response(PROBLEM, style) == expected


@pytest.mark.parametrize("style", STYLES)
def test_right_is_right_slips_are_wrong_broken_has_no_format(style):
    """By the verdict of the style's own grader."""
    rng, grade = random.Random(0), PROMPTS[style].reward_fn
    for problem in word_problems(200, seed=4):
        verdict = grade(right_response(problem, style), problem.ground_truth)
        assert (verdict["format_reward"], verdict["answer_reward"]) == (1, 1)
        text = slip_response(problem, style, rng)
        verdict = grade(text, problem.ground_truth)
        assert (verdict["format_reward"], verdict["answer_reward"]) == (1, 0), text
        text = broken_response(problem, style, rng)
        assert grade(text, problem.ground_truth)["format_reward"] == 0, text


def test_a_slip_is_one_wrong_calculation_that_is_carried_on():
    rng, wrong_steps = random.Random(1), []
    for problem in word_problems(300, seed=2):
        text = slip_response(problem, "tiny_r1_zero", rng)
        steps = re.findall(r"(\d+)([-+*/])(\d+)=(\d+)", text)
        assert len(steps) == int(problem.level)
        compute = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__floordiv__}
        wrong_steps.append(sum(compute[op](int(x), int(y)) != int(r) for x, op, y, r in steps))
        assert f"<answer> {steps[-1][3]} </answer>" in text  # the answer is what the working led to
    assert min(wrong_steps) == 1
    # A carried difference that would be negative is written without its sign, so now and then two are wrong.
    assert sum(count == 1 for count in wrong_steps) > 0.9 * len(wrong_steps)


def test_guesses_are_seldom_right_and_show_no_working():
    rng = random.Random(2)
    problems = word_problems(1000, seed=6)
    texts = [guess_response(problem, "tiny_r1_zero", rng) for problem in problems]
    assert not any("=" in text for text in texts)
    grade = PROMPTS["tiny_r1_zero"].reward_fn
    verdicts = [grade(text, p.ground_truth) for text, p in zip(texts, problems, strict=True)]
    assert all(verdict["format_reward"] == 1 for verdict in verdicts)
    assert 0.01 < sum(verdict["answer_reward"] for verdict in verdicts) / 1000 < 0.10


@pytest.mark.parametrize("style", STYLES)
def test_mixed_corpus_has_the_stated_shares(style):
    rng = random.Random(3)
    problems = word_problems(2000, seed=8)
    texts = [mixed_response(problem, style, rng) for problem in problems]
    right = sum(t == right_response(p, style) for t, p in zip(texts, problems, strict=True)) / 2000
    guesses = sum("I guess" in text for text in texts) / 2000
    grade = PROMPTS[style].reward_fn
    broken = sum(grade(t, p.ground_truth)["format_reward"] == 0 for t, p in zip(texts, problems, strict=True)) / 2000
    assert sum(MIXTURES[style].values()) == pytest.approx(1)
    assert right == pytest.approx(MIXTURES[style]["right"], abs=0.04)  # more than three standard errors
    assert guesses == pytest.approx(MIXTURES[style]["guess"], abs=0.04)
    assert broken == pytest.approx(MIXTURES[style]["broken"], abs=0.04)


def test_rows_end_in_eos_and_join_prompt_and_response_encoded_apart():
    corpus = Corpus([PROBLEM], PROMPTS, TOKENIZER, seed=0)
    ((prompt, response),) = corpus.rows("tiny_r1_zero", 1, right_response)
    assert TOKENIZER.decode(prompt) == PROMPTS["tiny_r1_zero"].render(PROBLEM.question)
    assert response[-1] == TOKENIZER.eos_token_id
    assert TOKENIZER.decode(response[:-1]) == " 12+2=14, 14-4=10 </think> <answer> 10 </answer>"


def test_labels_are_the_response_tokens_and_nothing_else():
    inputs, labels = pad_rows([([1, 2, 3], [4, 5]), ([6], [7])], pad_id=0)
    assert inputs.tolist() == [[1, 2, 3, 4], [6, 0, 0, 0]]
    assert labels.tolist() == [[-100, -100, 4, 5], [7, -100, -100, -100]]


def test_learning_rate_rises_to_the_peak_and_falls():
    rates = [learning_rate_at(step, 1000, 2.0) for step in range(1000)]
    assert rates[0] == pytest.approx(2.0 / 50)
    assert max(rates) == rates[50] == pytest.approx(2.0)
    assert rates[525] == pytest.approx(2.0 * (0.05 + 0.95 / 2))  # half way down
    assert rates[999] == pytest.approx(0.1, abs=0.01)
    assert learning_rate_at(0, 1, 2.0) == 2.0


def test_training_learns_one_problem_by_heart():
    model = build_model(TOKENIZER, hidden_size=64, num_layers=1, num_heads=2, intermediate_size=64)
    corpus = Corpus([PROBLEM], PROMPTS, TOKENIZER, seed=0)
    loss = train_stage(model, corpus, right_response, steps=60, peak_lr=1e-2, batch_size=4, name="test")
    assert loss < 0.3  # from ln(512) = 6.2
    scores = measure(model, TOKENIZER, PROMPTS["tiny_r1_zero"], [PROBLEM] * 2, temperature=0)
    assert scores["accuracy"] == scores["format"] == 1
    # " 12+2=14, 14-4=10 </think> <answer> 10 </answer>", counted by hand: " ", 7 and ",", " ", 7,
    # then " </think> <answer> 10 </answer>" is " ", tag, " ", tag, " ", 1, 0, " ", tag. The stop string ends it.
    assert scores["tokens"] == 1 + 7 + 1 + 1 + 7 + 9


def short(out: Path, **changes) -> WarmupSettings:
    fields = {"problems": 50, "batch_size": 4, "clean_steps": 2, "mixed_steps": 2, "eval_problems": 0}
    return WarmupSettings(out=out, **{**fields, **changes})


def test_warmup_writes_a_whole_folder_the_same_each_time(tmp_path):
    first = warmup(short(tmp_path / "one", eval_problems=2))
    second = warmup(short(tmp_path / "two"))
    assert first == tmp_path / "one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]  # nothing left beside them
    assert {path.name for path in first.iterdir()} == {path.name for path in FOLDER.iterdir()}
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    report = json.loads((first / "warmup.json").read_text())
    assert report["settings"]["clean_steps"] == 2
    assert json.loads((second / "warmup.json").read_text())["validation"] == {}
    assert "out" not in report["settings"]
    assert set(report["validation"]) == {f"{style} {how}" for style in STYLES for how in ("greedy", "sampled")}
    assert AutoModelForCausalLM.from_pretrained(first).dtype == torch.bfloat16


def test_seed_changes_the_weights(tmp_path):
    folders = [warmup(short(tmp_path / str(s), seed=s, clean_steps=1, mixed_steps=0)) for s in (0, 1)]
    weights = [(folder / "model.safetensors").read_bytes() for folder in folders]
    assert weights[0] != weights[1]


def test_an_earlier_warmup_is_replaced_and_anything_else_is_not(tmp_path):
    out = tmp_path / "tiny"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"tiny' holds something else than a warm-up \(no warmup.json\)"):
        warmup(short(out))
    assert (out / "thesis.tex").read_text() == "years of work"
    (out / "thesis.tex").rename(out / "warmup.json")
    warmup(short(out, clean_steps=1, mixed_steps=0))
    assert (out / "model.safetensors").is_file()
    assert not (tmp_path / ".tiny.old").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"problems": -1}, "problems=-1 must be at least 1"),
        ({"eval_problems": -1}, "eval_problems=-1 must be 0 (none) or more"),
        ({"threads": 0}, "threads=0 must be at least 1"),
        ({"clean_steps": -1}, "clean_steps=-1 must be 0 (none) or more"),
        ({"mixed_lr": 0.0}, "mixed_lr=0.0 must be a positive number"),
        ({"clean_lr": float("nan")}, "clean_lr=nan must be a positive number"),
    ],
)
def test_bad_settings_are_named_before_anything_is_written(tmp_path, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        warmup(short(tmp_path / "tiny", **changes))
    assert list(tmp_path.iterdir()) == []


def test_out_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "tiny").write_text("a file")
    with pytest.raises(ValueError, match="must be a folder; there is a file of that name"):
        warmup(short(tmp_path / "tiny"))


@pytest.fixture(scope="module")
def committed():
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)


def test_committed_model_is_where_grpo_can_start(committed):
    """Sampled: mostly wrong, sometimes right. Greedy: well above, so the skill is there. 128 problems."""
    problems = word_problems(128, split="validation")
    prompt = PROMPTS["tiny_r1_zero"]
    sampled = measure(committed, TOKENIZER, prompt, problems, temperature=1.0)
    greedy = measure(committed, TOKENIZER, prompt, problems, temperature=0.0)
    assert 0.04 < sampled["accuracy"] < 0.33  # 10% to 25%, and two standard errors of 128
    assert 0.55 < sampled["format"] < 0.95
    assert greedy["accuracy"] > sampled["accuracy"] + 0.1


@pytest.mark.parametrize("style", STYLES)
def test_committed_model_knows_every_style(committed, style):
    problems = word_problems(64, split="validation", levels=(1, 2))
    scores = measure(committed, TOKENIZER, PROMPTS[style], problems, temperature=0.0)
    assert scores["format"] > 0.5
    assert scores["accuracy"] > 0.1


def test_committed_report_is_of_the_default_settings():
    """What is committed is what `grpo warmup` makes, and the report says how good it is."""
    report = json.loads((FOLDER / "warmup.json").read_text())
    defaults = WarmupSettings()
    assert report["settings"] == {key: getattr(defaults, key) for key in report["settings"]}
    assert set(report["settings"]) == set(WarmupSettings.__dataclass_fields__) - {"out"}
    assert report["styles"] == STYLES
    assert report["mixtures"] == MIXTURES
    assert report["validation"]["tiny_r1_zero sampled"]["accuracy"] <= 0.25


def test_a_copy_beside_the_model_is_left_alone(tmp_path):
    new, out, copy = tmp_path / "new", tmp_path / "tiny", tmp_path / "tiny.old"
    for folder in (new, out, copy):
        folder.mkdir()
        (folder / "which").write_text(folder.name)
    grpo.warmup._replace(new, out)
    left = {path.name: (path / "which").read_text() for path in tmp_path.iterdir()}
    assert left == {"tiny": "new", "tiny.old": "tiny.old"}
