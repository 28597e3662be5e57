"""The command line: help, presets, errors in one line, the last line of JSON."""

from __future__ import annotations

import json

import pytest

from grpo import cli
from grpo.cli import main
from grpo.config import preset
from grpo.grading import r1_zero_reward_fn
from grpo.runs import read_jsonl


def test_help_and_unknown_command(capsys):
    assert main(["--help"]) == 0
    assert "grpo demo" in capsys.readouterr().out
    assert main([]) == 2
    assert main(["tain"]) == 2
    assert "'tain' is unknown; choose one of demo, train, plan, " in capsys.readouterr().err


@pytest.mark.parametrize("command", ["demo", "train", "eval", "warmup"])
def test_help_of_each_command(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert "seed" in capsys.readouterr().out


@pytest.fixture
def seen(monkeypatch):
    """What `grpo train` would start."""
    calls = []

    def train(settings, resume):
        calls.append((settings, resume))
        raise ValueError("stopped here")

    monkeypatch.setattr(cli, "train", train)
    return calls


@pytest.mark.parametrize("form", [["--preset", "olmo2-1b"], ["--preset=olmo2-1b"]])
def test_train_starts_from_the_preset_and_changes_what_is_said(seen, form):
    main(["train", "--seed", "43", *form, "--learning-rate", "3e-5", "--estimator", "dr_grpo", "--resume"])
    [(settings, resume)] = seen
    assert resume
    assert (settings.seed, settings.learning_rate, settings.estimator) == (43, 3e-5, "dr_grpo")
    assert settings.train_questions == preset("olmo2-1b").train_questions


def test_train_defaults_to_tiny(seen):
    main(["train"])
    assert seen == [(preset("tiny"), False)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--preset", "huge"], "preset='huge' is unknown; choose one of 'tiny'"),
        (["train", "--preset"], "preset='' is unknown"),
        (["train", "--train-batch", "100"], "train_batch=100 must be a multiple of group_size=8"),
        (["eval", "--engine", "sglang"], "engine='sglang' is unknown"),
        (["eval", "--dtype", "int8"], "dtype='int8'"),
        (["eval", "--prompt", "nope"], "nope"),
        (["eval", "--data", "gsm8k", "--data-dir", "no-such-folder"], "grpo data fetch gsm8k"),
        (["eval", "--model", "nope"], "model='nope' is neither"),
        (["eval", "--n", "0"], "n=0 must be at least 1"),
        (["eval", "--n", "-5", "--data", "x.jsonl"], "n=-5 must be at least 1"),
        (["eval", "--max-new-tokens", "0"], "max_new_tokens=0 must be at least 1"),
        (["eval", "--max-new-tokens", "500"], "max_new_tokens=500 that exceeds the model's context of 512"),
        (["eval", "--seed", "9" * 20], f"seed={'9' * 20} must be"),
        (["eval", "--data", "math"], "data='math' is unknown; choose one of 'words', 'gsm8k'"),
        (["eval", "--device", "cud"], "device='cud' cannot be used"),
        (["eval", "--device", "cuda:99"], "device='cuda:99' cannot be used"),
        (["train", "--device", "cuda:99"], "device='cuda:99' cannot be used"),
        (["eval", "--out", f"{__file__}/x.jsonl"], "x.jsonl' cannot be written"),
        (["train", "--run-dir", f"{__file__}/run"], "run' cannot be written"),
        (["data", "fetch", "gsm8k", "--target", __file__], f"target={__file__!r} cannot be made"),
        (["warmup", "--problems", "8", "--out", f"{__file__}/tiny"], "tiny' cannot be written"),
        (["plan", "--gpu", "h1000"], "gpu='h1000' is unknown; choose one of 'h200', 'h100'"),
        (["plan", "--mfu", "0"], "mfu=0.0 must be above 0"),
        (["plan", "--microbatches", "0"], "microbatches=0 must be an integer of at least 1"),
        (["data"], "expected `grpo data fetch gsm8k`"),
        (["data", "fetch", "mnist"], "dataset='mnist' is unknown"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("grpo: error: ")
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == []


def test_eval_writes_verdicts_and_ends_with_json(random_model_folder, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    options = ["--model", str(random_model_folder), "--n", "6", "--max-new-tokens", "6", "--out", str(out)]
    assert main(["eval", *options]) == 0
    printed = capsys.readouterr().out
    line = json.loads(printed.strip().splitlines()[-1])
    expected = "model engine dataset prompt n format_and_right format_only neither mean_tokens tokens_per_second"
    assert list(line) == expected.split()
    assert (line["n"], line["engine"], line["dataset"], line["prompt"]) == (6, "hf", "words", "r1_zero")
    assert line["format_and_right"] + line["format_only"] + line["neither"] == 6
    rows = read_jsonl(out)
    assert len(rows) == 6
    for row in rows:
        graded = r1_zero_reward_fn(row["response"], row["ground_truth"])
        assert {key: row[key] for key in graded} == graded
    assert main(["eval", *options]) == 2
    assert "exists" in capsys.readouterr().err


def test_eval_of_real_gsm8k(random_model_folder, gsm8k_dir, tmp_path, capsys):
    options = ["--model", str(random_model_folder), "--data", "gsm8k", "--data-dir", str(gsm8k_dir)]
    options += ["--prompt", "tiny_r1_zero", "--n", "3", "--max-new-tokens", "4", "--out", str(tmp_path / "o.jsonl")]
    assert main(["eval", *options]) == 0
    assert json.loads(capsys.readouterr().out.strip().splitlines()[-1])["neither"] == 3


def test_fetch_prints_where(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(cli, "fetch_gsm8k", lambda target: tmp_path / "gsm8k" if target is None else target)
    assert main(["data", "fetch", "gsm8k"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "gsm8k")
    assert main(["data", "--help"]) == 0


def test_ctrl_c_is_one_line_and_status_130(monkeypatch, capsys):
    def interrupted(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "train", interrupted)
    assert main(["train"]) == 130
    assert capsys.readouterr().err.strip() == (
        "grpo: interrupted; `grpo train` goes on from its newest checkpoint with --resume"
    )


def test_eval_of_a_file_with_one_long_question_stops_before_the_first(random_model_folder, tmp_path, capsys):
    lines = [{"question": f"{i} plus 1?", "answer": f"#### {i + 1}"} for i in range(300)]
    lines.append({"question": "Why? " * 300, "answer": "#### 1"})
    file, out = tmp_path / "own.jsonl", tmp_path / "out.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert main(["eval", "--model", str(random_model_folder), "--data", str(file), "--out", str(out)]) == 2
    assert "question 'Why? Why?" in capsys.readouterr().err
    assert not out.exists()


def test_eval_of_a_checkpoint_as_the_readme_has_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    batches = ["--rollout-batch", "8", "--train-batch", "8", "--group-size", "4", "--validation-questions", "2"]
    assert main(["train", "--steps", "1", *batches, "--max-new-tokens", "30", "--run-dir", "runs/NAME"]) == 0
    assert main(["eval", "--model", "runs/NAME/checkpoints/step_000001", "--n", "4", "--out", "out.jsonl"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["prompt"] == "tiny_r1_zero"
    assert max(row["tokens"] for row in read_jsonl("out.jsonl")) <= 30
