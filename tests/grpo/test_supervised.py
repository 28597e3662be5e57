import itertools
import json

import pytest
import torch

from grpo import Problem, load_model, load_prompt, r1_zero_reward_fn
from grpo.supervised import (
    SFTSettings,
    in_random_order,
    load_worked_problems,
    sft,
    train_supervised,
    worked_response,
    worked_rows,
)
from grpo.words import word_problems

PROBLEM = Problem(
    "Ann has 3 pens.", "She gets 3+4=<<3+4=7>>7 pens.\nThen 7-2=<<7-2=5>>5 are left.\n#### 5", ground_truth="5"
)


@pytest.mark.parametrize(
    ("prompt", "thought", "expected"),
    [
        (
            "r1_zero",
            "rationale",
            " She gets 3+4=7 pens.\nThen 7-2=5 are left. </think> <answer> 5 </answer>",
        ),
        ("tiny_r1_zero", "calculations", " 3+4=7, 7-2=5 </think> <answer> 5 </answer>"),
        ("question_only", "rationale", " She gets 3+4=7 pens.\nThen 7-2=5 are left. \\boxed{5}"),
        ("question_only", "calculations", " 3+4=7, 7-2=5 \\boxed{5}"),
    ],
)
def test_worked_response_by_hand(prompt: str, thought: str, expected: str) -> None:
    assert worked_response(PROBLEM, load_prompt(prompt), thought) == expected


@pytest.mark.parametrize("thought", ["rationale", "calculations"])
def test_worked_responses_are_paid_by_the_prompts_own_reward(thought: str) -> None:
    for name in ("r1_zero", "question_only"):
        prompt = load_prompt(name)
        for problem in word_problems(40, seed=3):
            response = worked_response(problem, prompt, thought)
            assert prompt.reward_fn(response, problem.ground_truth, strict=True)["reward"] == 1


def test_a_response_without_a_thought_starts_at_its_marks() -> None:
    problem = Problem("?", "#### 4", "4")
    assert worked_response(problem, load_prompt("r1_zero")) == " </think> <answer> 4 </answer>"


def test_rows_are_prompt_and_response_encoded_apart_with_one_eos() -> None:
    _, tokenizer = load_model("tiny", device="cpu")
    prompt = load_prompt("tiny_r1_zero")
    ((prompt_ids, response_ids),) = worked_rows([PROBLEM], prompt, "calculations", tokenizer)
    assert tokenizer.decode(prompt_ids) == prompt.render("Ann has 3 pens.")
    assert response_ids[-1] == tokenizer.eos_token_id
    assert response_ids.count(tokenizer.eos_token_id) == 1
    response = tokenizer.decode(response_ids[:-1])
    assert r1_zero_reward_fn(response, "5")["reward"] == 1


def test_every_round_has_each_row_once_and_another_order() -> None:
    rows = [([i], [i]) for i in range(10)]
    drawn = list(itertools.islice(in_random_order(rows, seed=5), 30))
    rounds = [drawn[:10], drawn[10:20], drawn[20:]]
    assert all(sorted(one) == rows for one in rounds)
    assert rounds[0] != rounds[1] != rounds[2]
    assert list(itertools.islice(in_random_order(rows, seed=5), 30)) == drawn
    assert list(itertools.islice(in_random_order(rows, seed=6), 10)) != rounds[0]


def test_parts_change_memory_and_not_the_update() -> None:
    prompt = load_prompt("tiny_r1_zero")
    weights = []
    for size in (8, 3):
        model, tokenizer = load_model("tiny", device="cpu")
        rows = worked_rows(word_problems(8, seed=0), prompt, "calculations", tokenizer)
        parts = [rows[i : i + size] for i in range(0, 8, size)]
        train_supervised(model, lambda parts=parts: parts, tokenizer.pad_token_id, 1, 1e-3, "test")
        weights.append(model.lm_head.weight.detach())
    # Adam's first step is the sign of the gradient times the rate: compare where the sign is not that of rounding.
    assert (weights[0] - weights[1]).abs().median() < 1e-7
    assert ((weights[0] - weights[1]).abs() > 1e-5).float().mean() < 0.02


def test_the_loss_is_the_mean_cross_entropy_of_response_tokens() -> None:
    model, tokenizer = load_model("tiny", device="cpu")
    prompt = load_prompt("tiny_r1_zero")
    rows = worked_rows([PROBLEM], prompt, "calculations", tokenizer)
    ((prompt_ids, response_ids),) = rows
    with torch.no_grad():
        log_probs = model(torch.tensor([prompt_ids + response_ids])).logits.log_softmax(-1)[0]
    by_hand = [-log_probs[len(prompt_ids) + i - 1, token].item() for i, token in enumerate(response_ids)]
    loss = train_supervised(model, lambda: [rows], tokenizer.pad_token_id, 1, 1e-9, "test")
    assert loss == pytest.approx(sum(by_hand) / len(by_hand), rel=1e-4)


def test_sft_raises_the_share_of_worked_responses_and_writes_a_model(tmp_path) -> None:
    settings = SFTSettings(
        model="tiny",
        levels=(1,),
        questions=64,
        prompt="tiny_r1_zero",
        thought="calculations",
        steps=12,
        batch_size=16,
        learning_rate=1e-3,
        out=str(tmp_path / "sft"),
    )
    folder = sft(settings)
    report = json.loads((folder / "sft.json").read_text())
    assert report["settings"]["steps"] == 12
    model, tokenizer = load_model(folder, device="cpu")
    before, _ = load_model("tiny", device="cpu")
    rows = worked_rows(word_problems(64, 0, "validation", (1,)), load_prompt("tiny_r1_zero"), "calculations", tokenizer)
    loss = [train_supervised(m, lambda: [rows], tokenizer.pad_token_id, 1, 1e-9, "test") for m in (before, model)]
    assert loss[1] < 0.5 * loss[0]


def test_gsm8k_rows_are_training_questions_of_grpo_too(tmp_path) -> None:
    from grpo import TrainSettings
    from grpo.tasks import load_problems

    lines = [
        json.dumps({"question": f"What is {i}+1?", "answer": f"<<{i}+1={i + 1}>>\n#### {i + 1}"}) for i in range(60)
    ]
    file = tmp_path / "mine.jsonl"
    file.write_text("\n".join(lines))
    mine = load_worked_problems(SFTSettings(data=str(file), questions=20))
    training, validation = load_problems(
        TrainSettings(data=str(file), train_questions=40, validation_questions=20, rollout_batch=64, train_batch=64)
    )
    assert mine == training[:20]
    assert not set(mine) & set(validation)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps=0 must be at least 1"),
        ({"batch_size": 0}, "batch_size=0 must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 must be a finite number above 0"),
        ({"thought": "none"}, "thought='none'"),
        ({"data": "wrods"}, "data='wrods'"),
    ],
)
def test_bad_settings_are_named(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SFTSettings(**change)


def test_more_questions_than_there_are(tmp_path) -> None:
    file = tmp_path / "one.jsonl"
    file.write_text('{"question": "What is 1+1?", "answer": "#### 2"}\n')
    with pytest.raises(ValueError, match=r"questions=2 is more than the 1 of"):
        load_worked_problems(SFTSettings(data=str(file), questions=2))


def test_a_folder_of_something_else_is_kept(tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds something else than a model"):
        sft(SFTSettings(model="tiny", out=str(tmp_path)))
    assert (tmp_path / "notes.txt").read_text() == "mine"
