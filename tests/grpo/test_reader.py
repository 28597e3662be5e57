import json

import pytest

from grpo.models import load_model
from grpo.reader import page_html, page_text, read_page, sign, split_tokens
from grpo.runs import RunDir

RIGHT, WRONG = " 2+3 </think> <answer> 5 </answer>", " I guess 4. </think> <answer> 4 </answer>"


@pytest.fixture(scope="module")
def tokenizer():
    return load_model("tiny")[1]


@pytest.fixture
def run_dir(tmp_path, tokenizer):
    """Two steps: in the first two questions, in the second one."""
    run = RunDir(tmp_path / "run")
    run.create({"prompt": "tiny_r1_zero", "reward_fn": "grpo.grading.r1_zero_reward_fn"})

    def row(step, question, response, advantage, **extra):
        right = response == RIGHT
        ids = tokenizer(response, add_special_tokens=False)["input_ids"]
        return {
            "step": step,
            "question": question,
            "ground_truth": "5",
            "response": response,
            "finish_reason": "stop",
            "token_ids": ids,
            "reward": float(right),
            "advantage": advantage,
        } | {name: value(len(ids)) for name, value in extra.items()}

    run.append("rollouts", [row(1, "2 + 3 <b>?", RIGHT, 0.7), row(1, "2 + 3 <b>?", WRONG, -0.7)])
    run.append("rollouts", [row(1, "4 + 1?", RIGHT, 0.0), row(1, "4 + 1?", RIGHT, 0.0)])
    run.append("rollouts", [row(2, "2 + 3 <b>?", RIGHT, 0.5, token_entropy=lambda n: [0.0] * (n - 1) + [2.0])])
    return run.path


def test_pages_are_the_groups(run_dir, tokenizer):
    pages = [read_page(run_dir, number, tokenizer) for number in (1, 2, 3)]
    assert [(page.step, page.question, len(page.rollouts)) for page in pages] == [
        (1, "2 + 3 <b>?", 2),
        (1, "4 + 1?", 2),
        (2, "2 + 3 <b>?", 1),
    ]
    first, second = pages[0].rollouts
    assert "".join(first.pieces) == RIGHT
    assert "</think>" in first.pieces
    assert (first.reward, first.advantage, second.advantage) == (1.0, 0.7, -0.7)
    assert all(step.passed for step in first.steps)
    assert str(second.steps[-1]) == "REFUSED: right: 4 is not 5"
    assert pages[0].prompt.endswith("User: 2 + 3 <b>?\nAssistant: <think>")
    assert first.entropy is None
    assert pages[2].rollouts[0].entropy[-1] == 2.0


def test_without_a_tokenizer_words_are_shown(run_dir):
    assert read_page(run_dir).rollouts[0].pieces == [" 2+3", " </think>", " <answer>", " 5", " </answer>"]


def test_tokens_that_share_a_character_make_the_text_again(tokenizer):
    text = " 5 € 😀é</think>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    pieces = split_tokens(ids, tokenizer)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text
    assert "" in pieces  # the bytes of an emoji before its last
    assert "".join(split_tokens(ids[:-3], tokenizer)) == tokenizer.decode(ids[:-3])  # cut inside a character


def test_a_page_as_html(run_dir, tokenizer):
    page = read_page(run_dir, 1, tokenizer)
    shown = page_html(page)
    assert "2 + 3 &lt;b&gt;?" in shown
    assert "<b>?" not in shown
    assert "▲ +0.70" in shown
    assert "▼ -0.70" in shown
    assert shown.count("2px solid") == len(page.rollouts[0].pieces)
    assert shown.count("2px dotted") == len(page.rollouts[1].pieces)
    assert "✗ REFUSED: right: 4 is not 5" in shown
    silent = page_html(read_page(run_dir, 2, tokenizer))
    assert "○ 0" in silent
    assert "2px" not in silent
    assert "▼ -0.70 " in page_text(page)
    assert "[REFUSED: right: 4 is not 5]" in page_text(page)


def test_entropy_shades_where_it_was_recorded(run_dir, tokenizer):
    shown = page_html(read_page(run_dir, 3, tokenizer), "entropy")
    assert shown.count("0.00 nats") == len(read_page(run_dir, 3, tokenizer).rollouts[0].pieces) - 1
    assert 'rgba(90,90,90,0.52)" title="2.00 nats"' in shown  # 0.6 (1 - e^-2)
    with pytest.raises(ValueError, match="did not record the entropy"):
        page_html(read_page(run_dir, 1, tokenizer), "entropy")
    with pytest.raises(ValueError, match="or no tokenizer was given"):
        page_html(read_page(run_dir, 3), "entropy")  # its words are fewer than its tokens
    with pytest.raises(ValueError, match="shade='colour' is unknown; choose one of advantage, entropy"):
        page_html(read_page(run_dir, 1), "colour")


def test_a_reward_function_of_ones_own_has_no_steps_and_its_template_no_file(run_dir):
    (run_dir / "config.json").write_text(json.dumps({"prompt": "gone.prompt", "reward_fn": "__main__.mine"}))
    page = read_page(run_dir)
    assert page.prompt is None
    assert page.rollouts[0].steps is None
    assert "paid by a reward function of its own" in page_html(page)
    assert "The prompt" not in page_html(page)


def test_what_is_not_there_is_refused(run_dir, tmp_path):
    with pytest.raises(ValueError, match="page=4: there are pages 1 to 3"):
        read_page(run_dir, 4)
    with pytest.raises(FileNotFoundError, match=r"holds no config\.json and rollouts\.jsonl"):
        read_page(tmp_path)


@pytest.mark.parametrize(("advantage", "shown"), [(1.0, "▲ +1.00"), (-0.5, "▼ -0.50"), (0.0, "○ 0")])
def test_signs_need_no_colour(advantage, shown):
    assert sign(advantage) == shown


def test_entropy_of_a_page_with_an_empty_response(run_dir, tokenizer):
    rows = RunDir(run_dir).read("rollouts")
    (run_dir / "rollouts.jsonl").unlink()
    RunDir(run_dir).append("rollouts", [rows[-1], rows[-1] | {"response": "", "token_ids": [], "token_entropy": []}])
    assert "2.00 nats" in page_html(read_page(run_dir, 1, tokenizer), "entropy")
