"""The loop: exact resume, stops, skipped steps, bad input before compute, off-policy, trackers."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import types

import pytest
import torch

import grpo.trainer
from grpo.checkpoints import check_checkpoint
from grpo.config import TrainSettings
from grpo.data import Problem
from grpo.models import load_model
from grpo.runs import RunDir, RunDirError
from grpo.tasks import load_problems, question_numbers
from grpo.trainer import Trainer, TrainingStopped, device_use, mean_metrics, train


def vowels_reward(response: str, ground_truth: str) -> dict[str, float]:
    """Something that a random model earns a little of: the share of vowels in what it says."""
    share = sum(c in "aeiou" for c in response) / max(1, len(response))
    return {"reward": share, "format_reward": float(bool(response)), "answer_reward": float(share > 0.3)}


@pytest.fixture
def settings(random_model_folder, tmp_path):
    return TrainSettings(
        model=str(random_model_folder),
        levels=(1,),
        train_questions=6,
        validation_questions=4,
        steps=4,
        rollout_batch=16,
        train_batch=16,
        group_size=4,
        max_new_tokens=8,
        learning_rate=1e-3,
        validate_every=2,
        checkpoint_every=100,
        log_rollouts=3,
        run_dir=str(tmp_path / "run"),
    )


def go(settings, **more):
    return train(settings, **{"reward_fn": vowels_reward, "progress": False} | more)


def logs(folder):
    return {name: (folder / f"{name}.jsonl").read_bytes() for name in ("metrics", "rollouts")}


def weights(result):
    return [p.detach().clone() for p in result.model.parameters()]


def test_a_run_writes_what_it_says(settings):
    result = go(settings)
    folder = result.run.path
    train_rows, validation = result.run.read("metrics", "train"), result.run.read("metrics", "validation")
    assert [row["step"] for row in train_rows] == [1, 2, 3, 4]
    assert [row["step"] for row in validation] == [0, 2, 4]
    assert validation == result.validation
    expected = (
        "loss grad_norm token_entropy reward format_reward answer_reward pass@1 pass@4 zero_spread clip_fraction "
    )
    expected += "ratio_mean ratio_max approx_kl response_length_mean response_length_max rows_pruned tokens_processed "
    expected += "learning_rate skipped skipped_updates"
    assert set(expected.split()) <= set(train_rows[0])
    timing = result.run.read("timing")
    assert [row["step"] for row in timing] == [1, 2, 3, 4]
    for row, metrics in zip(timing, train_rows, strict=True):
        # 6 x (tied embeddings, and in each of 2 layers 4 x 32^2 of attention and 3 x 32 x 48 of the MLP) x tokens
        parameters = result.model.config.vocab_size * 32 + 2 * (4 * 32 * 32 + 3 * 32 * 48)
        flops = 6 * parameters * metrics["tokens_processed"]
        assert row["update_flops_per_second"] * row["update_seconds"] == pytest.approx(flops)
    assert [row["step"] for row in result.run.read("rollouts")] == [s for s in (1, 2, 3, 4) for _ in range(3)]
    assert all(len(row["token_entropy"]) == len(row["token_ids"]) for row in result.run.read("rollouts"))
    assert (folder / "figures" / "metrics.png").read_bytes().startswith(b"\x89PNG")
    assert result.run.config["reward_fn"].endswith("vowels_reward")
    assert result.run.checkpoint_steps() == [4]
    loaded, _ = load_model(result.run.checkpoint(4))
    assert all(torch.equal(a, b) for a, b in zip(weights(result), loaded.parameters(), strict=True))


def test_a_gpus_peak_memory_is_reported(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 2.5e9)
    monkeypatch.setattr(grpo.trainer, "matmul_parameters", lambda model: 1000)
    model = types.SimpleNamespace(device=torch.device("cuda"))
    assert device_use(model, 50, 2.0) == {"update_flops_per_second": 150_000, "peak_memory_gb": 2.5}


def test_training_moves_the_reward(settings):
    result = go(
        dataclasses.replace(
            settings,
            steps=20,
            learning_rate=1e-2,
            rollout_batch=32,
            train_batch=32,
            validate_every=20,
            train_questions=8,
        )
    )
    rewards = [row["reward"] for row in result.run.read("metrics", "train")]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.15


VARIANTS = {
    "on-policy": {},
    "off-policy with KL and a schedule": {
        "train_batch": 8,
        "passes": 2,
        "importance_reweighting": "grpo",
        "cliprange": 0.2,
        "kl_coef": 0.1,
        "schedule": "cosine",
        "warmup_updates": 3,
    },
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_resume_is_exact(settings, tmp_path, monkeypatch, variant):
    settings = dataclasses.replace(settings, **VARIANTS[variant])
    whole = go(settings)
    do_step = Trainer.do_step
    for stop_at in (1, 2, 3):
        check_resume(
            dataclasses.replace(settings, run_dir=str(tmp_path / f"stopped{stop_at}")), whole, stop_at, monkeypatch
        )
        assert Trainer.do_step is do_step


def check_resume(other, whole, stop_at, monkeypatch):
    do_step = Trainer.do_step

    def stop_after(self):
        if self.step == stop_at:
            os.kill(os.getpid(), signal.SIGINT)  # Ctrl-C in the middle of the step
        return do_step(self)

    monkeypatch.setattr(Trainer, "do_step", stop_after)
    stopped = go(other)
    assert stopped.step == stop_at
    monkeypatch.setattr(Trainer, "do_step", do_step)
    torch.rand(7)  # whatever else has drawn random numbers meanwhile
    resumed = go(other, resume=True)
    assert logs(resumed.run.path) == logs(whole.run.path)
    assert all(torch.equal(a, b) for a, b in zip(weights(resumed), weights(whole), strict=True))


def test_resume_after_a_kill_repeats_the_steps_since_the_checkpoint(settings, tmp_path, monkeypatch):
    expected = logs(go(settings).run.path)
    other = dataclasses.replace(settings, run_dir=str(tmp_path / "killed"), checkpoint_every=2)
    do_step = Trainer.do_step

    def die(self):
        result = do_step(self)
        if self.step == 3:
            raise SystemExit("killed")
        return result

    monkeypatch.setattr(Trainer, "do_step", die)
    with pytest.raises(SystemExit):
        go(dataclasses.replace(other))
    monkeypatch.setattr(Trainer, "do_step", do_step)
    with pytest.raises(RunDirError, match="checkpoint_every: 2 there, 100 now"):
        go(dataclasses.replace(other, checkpoint_every=100), resume=True)
    assert logs(go(other, resume=True).run.path) == expected


def test_resume_before_the_first_checkpoint_starts_again(settings, tmp_path, monkeypatch):
    expected = logs(go(settings).run.path)
    other = dataclasses.replace(settings, run_dir=str(tmp_path / "early"))
    monkeypatch.setattr(Trainer, "save", lambda self: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        go(other)
    monkeypatch.undo()
    assert logs(go(other, resume=True).run.path) == expected


def test_sigkill_of_a_real_process(settings, tmp_path):
    """The command itself, killed without warning, then resumed: the same file as a run that nobody touched."""
    import time

    def command(folder):
        options = settings.to_json() | {"run_dir": str(folder), "checkpoint_every": 1, "steps": 6}
        options |= {"levels": "1", "betas": "0.9 0.95"}
        line = [sys.executable, "-m", "grpo", "train"]
        for name, value in options.items():
            if value not in (None, "", []) and not isinstance(value, bool):
                line += [f"--{name.replace('_', '-')}", *str(value).split()]
        return line

    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command(tmp_path / "whole"), check=True, capture_output=True, env=one_thread)
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command(tmp_path / "killed"), stdout=quiet, stderr=quiet, env=one_thread)
    for _ in range(3000):
        if (tmp_path / "killed" / "checkpoints" / "step_000002").exists():
            break
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert not (tmp_path / "killed" / "checkpoints" / "step_000006").exists()
    subprocess.run([*command(tmp_path / "killed"), "--resume"], check=True, capture_output=True, env=one_thread)
    assert logs(tmp_path / "killed") == logs(tmp_path / "whole")


def test_more_steps_go_on_from_the_end(settings):
    go(dataclasses.replace(settings, steps=2))
    assert go(settings, resume=True).step == 4
    cosine = dataclasses.replace(settings, run_dir=settings.run_dir + "2", schedule="cosine")
    go(cosine)
    with pytest.raises(RunDirError, match="steps: 4 there, 5 now"):
        go(dataclasses.replace(cosine, steps=5), resume=True)


def test_run_directory_that_cannot_be_used(settings, tmp_path, monkeypatch):
    result = go(dataclasses.replace(settings, steps=1))
    before = logs(result.run.path)
    monkeypatch.setattr(grpo.trainer, "load_model", lambda *a, **k: pytest.fail("a model was loaded first"))
    with pytest.raises(RunDirError, match="holds this run already; add --resume"):
        go(settings)
    with pytest.raises(
        RunDirError, match=r"another configuration \(learning_rate: 0.001 there, 0.002 now; seed: 1 there, 2"
    ):
        go(dataclasses.replace(settings, learning_rate=2e-3, seed=2))
    with pytest.raises(RunDirError, match=r"another configuration \(reward_fn"):
        train(settings, progress=False, resume=True)
    with pytest.raises(RunDirError, match="holds no run to resume"):
        go(dataclasses.replace(settings, run_dir=str(tmp_path / "nowhere")), resume=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    with pytest.raises(RunDirError, match="is not empty and holds no run"):
        go(dataclasses.replace(settings, run_dir=str(tmp_path / "full")))
    assert logs(result.run.path) == before
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "trainer.pt", "manifest.json"])
def test_checkpoint_cut_short(settings, name):
    result = go(dataclasses.replace(settings, steps=1))
    file = result.run.checkpoint(1) / name
    if name == "manifest.json":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(RunDirError, match=rf"step_000001 is cut short: {name} .*delete that folder"):
        go(settings, resume=True)


def test_check_checkpoint_accepts_a_whole_one(settings):
    result = go(dataclasses.replace(settings, steps=1))
    check_checkpoint(result.run.checkpoint(1))


def test_old_checkpoints_go(settings):
    result = go(dataclasses.replace(settings, checkpoint_every=1, keep_checkpoints=2))
    assert result.run.checkpoint_steps() == [3, 4]


def poison(monkeypatch, bad_updates):
    """Make the loss of the updates of those numbers (from 1) not finite."""
    update, count = grpo.trainer.policy_gradient_update, [0]

    def poisoned(model, optimizer, batch, advantages, *rest):
        count[0] += 1
        if count[0] in bad_updates:
            advantages = torch.full_like(advantages, float("inf"))
        return update(model, optimizer, batch, advantages, *rest)

    monkeypatch.setattr(grpo.trainer, "policy_gradient_update", poisoned)


def test_two_bad_updates_are_skipped_and_counted(settings, monkeypatch):
    poison(monkeypatch, {2, 3})
    rows = go(settings).run.read("metrics", "train")
    assert [row["skipped"] for row in rows] == [0, 1, 1, 0]
    assert [row["skipped_updates"] for row in rows] == [0, 1, 2, 2]
    assert rows[1]["loss"] is None  # JSON has no NaN


def test_three_bad_updates_stop_with_the_last_good_step_saved(settings, tmp_path, monkeypatch):
    good = go(dataclasses.replace(settings, steps=1, run_dir=str(tmp_path / "good")))
    poison(monkeypatch, {2, 3, 4})
    with pytest.raises(TrainingStopped, match="after step 1, the last good one"):
        go(settings)
    checkpoint = tmp_path / "run" / "checkpoints" / "step_000001"
    check_checkpoint(checkpoint)
    loaded, _ = load_model(checkpoint)
    assert all(torch.equal(a, b) for a, b in zip(weights(good), loaded.parameters(), strict=True))


def test_the_last_good_step_is_kept_whatever_was_saved_after_it(settings, tmp_path, monkeypatch):
    poison(monkeypatch, {2, 3, 4})
    with pytest.raises(TrainingStopped, match=r"after step 1.*step_000001"):
        go(dataclasses.replace(settings, checkpoint_every=1))
    run = RunDir(tmp_path / "run")
    assert run.checkpoint_steps() == [1]
    check_checkpoint(run.checkpoint(1))
    # Resumed, the bad steps are done and counted anew.
    monkeypatch.undo()
    rows = go(dataclasses.replace(settings, checkpoint_every=1), resume=True).run.read("metrics", "train")
    assert [(row["step"], row["skipped_updates"]) for row in rows] == [(1, 0), (2, 0), (3, 0), (4, 0)]


def test_bad_updates_in_a_row_are_counted_across_a_resume(settings, tmp_path, monkeypatch):
    poison(monkeypatch, {2, 3})
    two_steps_on = dataclasses.replace(settings, checkpoint_every=1)
    go(dataclasses.replace(two_steps_on, steps=3))
    monkeypatch.undo()
    poison(monkeypatch, {1})
    with pytest.raises(TrainingStopped, match="the state after step 1, the last good one"):
        go(two_steps_on, resume=True)
    assert RunDir(tmp_path / "run").checkpoint_steps() == [1]


def test_a_signal_after_the_steps_last_look_saves_the_step(settings, monkeypatch):
    class Bar(grpo.trainer.tqdm):
        def set_postfix(self, **values):
            if "reward" in values:
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(grpo.trainer, "tqdm", Bar)
    result = go(settings)
    assert result.step == 1
    assert result.run.checkpoint_steps() == [1]


@pytest.mark.parametrize("damage", ["manifest", "trainer.pt"])
def test_a_damaged_checkpoint_of_the_right_size_loses_nothing(settings, damage):
    result = go(dataclasses.replace(settings, steps=2))
    folder = result.run.checkpoint(2)
    if damage == "manifest":
        (folder / "manifest.json").write_text("{")
    else:
        file = folder / "trainer.pt"
        file.write_bytes(b"x" * file.stat().st_size)
    with result.run.file("metrics").open("ab") as file:
        file.write(b'{"kind": "train", "step": 3}\n')
    before = logs(result.run.path)
    with pytest.raises(RunDirError, match=rf"step_000002.*{damage}"):
        go(settings, resume=True)
    assert logs(result.run.path) == before
    assert result.run.config["steps"] == 2


class Vowels:
    def __call__(self, response, ground_truth):
        return vowels_reward(response, ground_truth)


def test_any_callable_is_a_reward_function(settings, tmp_path):
    short = dataclasses.replace(settings, steps=1)
    run = go(short, reward_fn=functools.partial(vowels_reward)).run
    assert run.config["reward_fn"].endswith(".vowels_reward")
    run = go(dataclasses.replace(short, run_dir=str(tmp_path / "b")), reward_fn=Vowels()).run
    assert run.config["reward_fn"].endswith(".Vowels")


def test_no_problems(settings, tmp_path):
    with pytest.raises(ValueError, match="problems holds no training or no validation problem"):
        go(settings, problems=([Problem("How many?", "#### 1", "1")], []))
    assert not (tmp_path / "run").exists()


def test_off_policy_updates(settings):
    result = go(dataclasses.replace(settings, **VARIANTS["off-policy with KL and a schedule"]))
    row = result.run.read("metrics", "train")[0]
    assert row["ratio_max"] > 1  # later updates are off-policy
    assert row["approx_kl"] > 0
    assert row["kl_to_reference"] >= 0
    assert row["learning_rate"] == pytest.approx(settings.learning_rate * (1 / 3 + 2 / 3 + 1 + 1) / 4)


def test_on_policy_ratio_is_one_when_reweighting(settings):
    reweighted = dataclasses.replace(settings, importance_reweighting="grpo", cliprange=0.2, steps=1)
    row = go(reweighted).run.read("metrics", "train")[0]
    assert row["ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert row["clip_fraction"] == 0


def test_the_engines_difference_is_measured_and_weighed(settings, tmp_path):
    plain = go(settings)
    # hf samples from the trainer's own weights: the difference is rounding, and the weights are 1 but for that
    weighed = go(dataclasses.replace(settings, engine_weight_cap=2.0, run_dir=str(tmp_path / "weighed")))
    for row in weighed.run.read("metrics", "train"):
        assert 0 <= row["engine_mismatch_mean"] <= row["engine_mismatch_max"] < 1e-4
        assert row["engine_effective_sample_size"] == pytest.approx(1, abs=1e-6)
    for a, b in zip(weights(plain), weights(weighed), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)
    # a cap of 1e-9 leaves next to no gradient, before the optimizer makes steps of it
    capped = go(dataclasses.replace(settings, engine_weight_cap=1e-9, run_dir=str(tmp_path / "capped"), steps=1))
    norms = [r.run.read("metrics", "train")[0]["grad_norm"] for r in (plain, capped)]
    assert norms[1] == pytest.approx(1e-9 * norms[0], rel=1e-3)


def test_train_batches_are_whole_groups_each_once_a_pass(settings):
    trainer = Trainer(dataclasses.replace(settings, train_batch=8, passes=2), vowels_reward, None, False, False)
    trainer.step = 1
    batches = [rows.tolist() for rows in trainer._train_batches()]
    assert [len(rows) for rows in batches] == [8, 8, 8, 8]
    for both in (batches[:2], batches[2:]):
        assert sorted(both[0] + both[1]) == list(range(16))
    for rows in batches:
        assert rows[:4] == list(range(rows[0], rows[0] + 4))
        assert rows[0] % 4 == 0
    trainer.step = 2
    assert [rows.tolist() for rows in trainer._train_batches()] != batches


def test_questions_come_in_permutations():
    seen = [n for step in range(1, 7) for n in question_numbers(step, 4, 6, seed=3)]
    for start in range(0, 24, 6):
        assert sorted(seen[start : start + 6]) == list(range(6))
    assert seen[:6] != seen[6:12]
    assert question_numbers(1, 4, 6, seed=3) != question_numbers(1, 4, 6, seed=4)


def test_tracker(settings, monkeypatch):
    calls = []
    fake = types.ModuleType("faketracker")
    fake.init = lambda **k: calls.append(("init", k["project"], k["config"]["steps"]))
    fake.log = lambda row, step: calls.append(("log", step, sorted(row)[0].split("/")[0]))
    fake.finish = lambda: calls.append(("finish",))
    monkeypatch.setitem(sys.modules, "faketracker", fake)
    go(dataclasses.replace(settings, steps=1, tracker="faketracker"))
    assert calls[0] == ("init", "grpo-lab", 1)
    assert calls[1:-1] == [("log", 0, "validation"), ("log", 1, "train"), ("log", 1, "validation")]
    assert calls[-1] == ("finish",)


def test_tracker_that_cannot_be_had(settings):
    with pytest.raises(ModuleNotFoundError, match="tracker='no_such_tracker' is not installed"):
        go(dataclasses.replace(settings, tracker="no_such_tracker"))
    with pytest.raises(ModuleNotFoundError, match=r"tracker='\.wandb' is not installed"):
        go(dataclasses.replace(settings, tracker=".wandb"))
    with pytest.raises(ValueError, match="tracker='json' has no init, log, finish"):
        go(dataclasses.replace(settings, tracker="json"))


def test_question_longer_than_the_context_is_named_before_anything_is_written(settings, tmp_path):
    long = Problem("Why? " * 300, "#### 1", "1")
    short = Problem("How many?", "#### 1", "1")
    with pytest.raises(ValueError, match=r"training question 'Why\? .*exceeds the model's context of 512"):
        go(settings, problems=([short] * 4 + [long], [short]))
    assert not (tmp_path / "run").exists()


def test_reward_function_that_fails_names_the_rollout(settings):
    def broken(response, ground_truth):
        raise KeyError("oops")

    with pytest.raises(RuntimeError, match=r"rollout_responses\[0\].*KeyError"):
        go(settings, reward_fn=broken)


def test_own_problems_and_jsonl(settings, tmp_path):
    lines = [{"question": f"{i} plus 1?", "answer": f"So it is.\n#### {i + 1}"} for i in range(12)]
    file = tmp_path / "own.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    own = dataclasses.replace(settings, data=str(file))
    training, validation = load_problems(own)
    assert (len(training), len(validation)) == (6, 4)
    assert not {p.question for p in training} & {p.question for p in validation}
    assert go(dataclasses.replace(own, steps=1)).step == 1
    with pytest.raises(ValueError, match="train_questions=60 and validation_questions=4 are more than the 12"):
        load_problems(dataclasses.replace(own, train_questions=60))


def test_a_question_in_both_splits_is_named(settings, tmp_path):
    file = tmp_path / "own.jsonl"
    file.write_text('{"question": "1 plus 1?", "answer": "#### 2"}\n' * 10)
    with pytest.raises(ValueError, match=r"'1 plus 1\?' twice, which puts it into training and into validation"):
        load_problems(dataclasses.replace(settings, data=str(file)))


def test_gsm8k_split(settings, gsm8k_dir):
    gsm8k = dataclasses.replace(
        settings, data="gsm8k", data_dir=str(gsm8k_dir), train_questions=6400, validation_questions=1024
    )
    training, validation = load_problems(gsm8k)
    assert (len(training), len(validation)) == (6400, 1024)
    assert not {p.question for p in training} & {p.question for p in validation}
    assert load_problems(dataclasses.replace(gsm8k, seed=9)) == (training, validation)


def test_mean_metrics():
    one = {"loss": 1.0, "ratio_max": 2.0, "rows_pruned": 3.0, "token_entropy": float("nan")}
    two = {"loss": 3.0, "ratio_max": 1.0, "rows_pruned": 4.0, "token_entropy": 0.5}
    assert mean_metrics([one, two]) == {"loss": 2.0, "ratio_max": 2.0, "rows_pruned": 7.0, "token_entropy": 0.5}
