"""The vllm engine: its pipe with a stand-in for vLLM, everywhere; vLLM itself where it is installed (mark vllm)."""

import importlib.util
import os
import signal
import subprocess
import sys
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch

from grpo import (
    HFEngine,
    Sampling,
    TrainSettings,
    VLLMEngine,
    load_model,
    load_prompt,
    log_probs_in_batches,
    tokenize_prompt_and_output,
    train,
    word_problems,
)
from grpo.cli import main
from grpo.rollouts import EngineError, check_vllm, options, vllm_local
from grpo.runs import RunDir
from grpo.trainer import Trainer, TrainingStopped

PROMPT = load_prompt("tiny_r1_zero")
PROMPTS = [PROMPT.render(problem.question) for problem in word_problems(4, seed=3)]
SAMPLED = Sampling(n=4, max_tokens=80, stop=PROMPT.stop, seed=5)
GREEDY = Sampling(n=2, max_tokens=80, stop=PROMPT.stop, temperature=0)
FAKE = [sys.executable, str(Path(__file__).with_name("fake_vllm_worker.py"))]
HAS_VLLM = importlib.util.find_spec("vllm") is not None


@pytest.fixture
def stand_in(monkeypatch):
    """The engine's process without vLLM in it."""
    monkeypatch.setattr(vllm_local, "WORKER", FAKE)
    monkeypatch.setattr(options, "check_vllm", lambda: None)


@pytest.fixture(
    params=[
        "stand_in",
        pytest.param("vllm", marks=[pytest.mark.vllm, pytest.mark.skipif(not HAS_VLLM, reason="no vLLM")]),
    ]
)
def worker(request, monkeypatch):
    """Each test that asks for this runs with the stand-in and, where it is installed, with vLLM."""
    if request.param == "stand_in":
        request.getfixturevalue("stand_in")
    return request.param


def moved(model):
    """Weights after a step that changes every one of them, the head that is tied to the embedding too."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * parameter.std() * torch.randn(parameter.shape, generator=generator))


def trainer_log_probs(model, tokenizer, completions, n, temperature):
    """Log-probs of the sampled ids in a forward pass of the trainer, a list a completion."""
    batch = tokenize_prompt_and_output(
        [prompt for prompt in PROMPTS for _ in range(n)],
        [c.text for c in completions],
        tokenizer,
        output_token_ids=[c.token_ids for c in completions],
    )
    rows = log_probs_in_batches(model, batch, 16, temperature=temperature)
    return [row[mask].tolist() for row, mask in zip(rows, batch["response_mask"], strict=True)]


def largest_difference(completions, expected):
    pairs = zip(completions, expected, strict=True)
    return max(abs(a - b) for c, row in pairs for a, b in zip(c.log_probs, row, strict=True))


def test_samples_are_the_policys_before_and_after_a_sync(worker):
    model, tokenizer = load_model("tiny", device="cpu")
    with VLLMEngine(model, tokenizer) as engine:
        greedy = HFEngine(model, tokenizer).generate(PROMPTS, GREEDY)
        assert [(c.text, c.token_ids) for c in engine.generate(PROMPTS, GREEDY)] == [
            (c.text, c.token_ids) for c in greedy
        ]

        sampling = replace(SAMPLED, temperature=0.7)
        first = engine.generate(PROMPTS, sampling)
        assert engine.generate(PROMPTS, sampling) == first
        assert engine.generate(PROMPTS, replace(sampling, seed=6)) != first
        assert all(len({c.text for c in first[i : i + 4]}) > 1 for i in range(0, 16, 4))
        before = trainer_log_probs(model, tokenizer, first, 4, 0.7)
        assert largest_difference(first, before) < 1e-3

        moved(model)
        engine.sync(model)
        second = engine.generate(PROMPTS, sampling)
        expected = trainer_log_probs(model, tokenizer, second, 4, 0.7)
        assert (
            largest_difference(second, expected) < 1e-3
        )  # keys and values of cached prefixes are the new weights' too
        old_model, _ = load_model("tiny", device="cpu")
        stale = trainer_log_probs(old_model, tokenizer, second, 4, 0.7)
        assert largest_difference(second, stale) > 0.05  # the test would see weights that had stayed


def test_the_process_removes_the_files_of_a_trainer_that_is_gone(tmp_path):
    ours, theirs = Pipe()
    folder = tmp_path / "engine"
    (folder / "model").mkdir(parents=True)
    command = [*vllm_local.WORKER, str(theirs.fileno()), str(folder)]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()]) as process:
        theirs.close()
        ours.close()
        assert process.wait(60) == 0
    assert not folder.exists()


def test_a_killed_process_is_one_clear_error(stand_in):
    model, tokenizer = load_model("tiny", device="cpu")
    engine = VLLMEngine(model, tokenizer)
    folder = engine.folder
    os.kill(engine.process.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="died in 'generate', exit status -9"):
        engine.generate(PROMPTS, SAMPLED)
    assert not folder.exists()
    with pytest.raises(EngineError, match="closed"):
        engine.generate(PROMPTS, SAMPLED)


def test_a_run_whose_engine_is_killed_goes_on_as_if_it_had_not(worker, tmp_path, monkeypatch):
    settings = TrainSettings(
        engine="vllm",
        steps=3,
        rollout_batch=16,
        train_batch=16,
        train_questions=32,
        validation_questions=4,
        validate_every=3,
        threads=1,
        device="cpu",
        run_dir=str(tmp_path / "killed"),
    )
    whole = train(replace(settings, run_dir=str(tmp_path / "whole")), progress=False)

    rollout = Trainer.rollout

    def killed_in_step_2(self):
        if self.step == 2:
            os.kill(self.engine.process.pid, signal.SIGKILL)
        return rollout(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "rollout", killed_in_step_2)
        with pytest.raises(
            TrainingStopped, match=r"after step 1 is in .*step_000001, go on .*--resume; .*exit status -9"
        ):
            train(settings, progress=False)
    resumed = train(settings, resume=True, progress=False)
    assert RunDir(resumed.run.path).read("metrics") == RunDir(whole.run.path).read("metrics")


@pytest.mark.parametrize(
    ("seed", "message"),
    [
        (13, "died in 'generate', exit status 9(.|\n)*the last words of the worker"),
        (14, "gave no answer to 'generate' within engine_time_limit=1 seconds"),
        (15, "failed in 'generate': ValueError: no such parameter"),
    ],
)
def test_what_the_process_did_is_said_and_it_is_ended(stand_in, seed, message):
    model, tokenizer = load_model("tiny", device="cpu")
    engine = VLLMEngine(model, tokenizer)
    engine.options = replace(engine.options, engine_time_limit=1.0 if seed == 14 else 60.0)
    process = engine.process
    with pytest.raises(EngineError, match=message):
        engine.generate(PROMPTS, replace(SAMPLED, seed=seed))
    assert process.poll() is not None


def test_closing_ends_the_process_and_removes_its_files(stand_in):
    model, tokenizer = load_model("tiny", device="cpu")
    with VLLMEngine(model, tokenizer) as engine:
        process, folder = engine.process, engine.folder
        assert process.poll() is None
        assert engine.generate([], SAMPLED) == []
    assert process.poll() is not None
    assert not folder.exists()
    engine.close()


def test_bad_input_is_refused_by_name(stand_in):
    model, tokenizer = load_model("tiny", device="cpu")
    with VLLMEngine(model, tokenizer) as engine:
        with pytest.raises(ValueError, match=r"temperature=0\.001 must be 0 or at least 0\.01"):
            engine.generate(PROMPTS, replace(SAMPLED, temperature=0.001))
        with pytest.raises(ValueError, match=r"prompts\[0\].*context holds"):
            engine.generate(PROMPTS, replace(SAMPLED, max_tokens=10_000))
        with pytest.raises(TypeError, match="prompts"):
            engine.generate(PROMPTS[0], SAMPLED)


def test_without_vllm_the_extra_is_named_before_anything_is_written(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"engine='vllm'.*make vllm-cpu.*grpo-lab\[vllm\]"):
        check_vllm()
    for command in (["train", "--run-dir", str(tmp_path / "run")], ["eval", "--out", str(tmp_path / "out.jsonl")]):
        assert main([*command, "--engine", "vllm"]) == 2
        assert "make vllm-cpu" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_does_not_start_leaves_nothing_behind(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(vllm_local, "WORKER", [sys.executable, "-c", "raise SystemExit('no such device')"])
    monkeypatch.setattr(options, "check_vllm", lambda: None)
    for command in (["train", "--run-dir", str(tmp_path / "run")], ["eval", "--out", str(tmp_path / "out.jsonl")]):
        assert main([*command, "--engine", "vllm"]) == 2
        assert "no such device" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_another_version_is_warned_of(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())

    def version(name):
        if name == "vllm":
            return "0.31.2"
        raise options.importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(options.importlib.metadata, "version", version)
    with pytest.warns(UserWarning, match=r"vllm 0\.31\.2 is not the version that was tested, 0\.32\.0"):
        check_vllm()


@pytest.mark.vllm
@pytest.mark.skipif(not HAS_VLLM, reason="no vLLM")
def test_the_head_of_tied_embeddings_is_synced_too():
    model, tokenizer = load_model("tiny", device="cpu")
    assert model.config.tie_word_embeddings
    with VLLMEngine(model, tokenizer) as engine:
        with torch.no_grad():
            model.lm_head.weight.mul_(0.5)  # the embedding too: the same tensor
        engine.sync(model)
        completions = engine.generate(PROMPTS, replace(SAMPLED, n=1))
        expected = trainer_log_probs(model, tokenizer, completions, 1, 1.0)
        assert largest_difference(completions, expected) < 1e-3
