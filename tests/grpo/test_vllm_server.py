"""The vllm-server engine: over HTTP to a stand-in, everywhere; to vLLM's own server where it is installed (mark vllm)."""

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
import torch
from test_vllm import GREEDY, HAS_VLLM, PROMPTS, SAMPLED, largest_difference, moved, trainer_log_probs

from grpo import EngineError, EngineOptions, HFEngine, Sampling, TrainSettings, VLLMServerEngine, load_model, train
from grpo.rollouts import options, vllm_server
from grpo.runs import RunDir
from grpo.trainer import Trainer, TrainingStopped

FAKE = [sys.executable, str(Path(__file__).with_name("fake_vllm_server.py"))]


@pytest.fixture
def stand_in(monkeypatch):
    """The server without vLLM in it, and short waits."""
    monkeypatch.setattr(vllm_server, "SERVER", FAKE)
    monkeypatch.setattr(vllm_server, "WAITS", (0.05, 0.1))
    monkeypatch.setattr(options, "check_vllm", lambda: None)


@pytest.fixture(scope="module")
def policy():
    torch.set_num_threads(1)
    return load_model("tiny", device="cpu")


@pytest.fixture(scope="module")
def real():
    """vLLM's server over the tiny model, started once."""
    model, tokenizer = load_model("tiny", device="cpu")
    with VLLMServerEngine(model, tokenizer) as engine:
        yield engine


@pytest.fixture
def running(stand_in, monkeypatch):
    """A stand-in that someone else has started: its URL."""
    port = vllm_server.free_port()
    monkeypatch.setenv("FAKE_ATTACHED", "1")
    folder = str(Path(__file__).parents[2] / "data" / "tiny")
    process = subprocess.Popen(
        [*FAKE, "--model", folder, "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "200"]
    )
    url = f"http://127.0.0.1:{port}"
    wait_for(url)
    yield url
    assert process.poll() is None, "an attached server was ended"
    process.kill()
    process.wait()


def wait_for(url):
    for _ in range(600):
        try:
            return httpx2.get(url + "/health")
        except httpx2.TransportError:
            time.sleep(0.1)
    raise AssertionError(f"{url} did not start")


def group_is_gone(group):
    """Whether no process of that group runs; zombies that nobody has waited for do not count."""
    for _ in range(100):
        rows = subprocess.run(["ps", "-eo", "pgid=,stat="], capture_output=True, text=True, check=True).stdout.split(
            "\n"
        )
        if not any(row.split()[0] == str(group) and "Z" not in row.split()[1] for row in rows if row.strip()):
            return True
        time.sleep(0.1)
    return False


def test_samples_syncs_and_ends_its_server(stand_in, policy):
    model, tokenizer = load_model("tiny", device="cpu")
    ended = []
    with VLLMServerEngine(model, tokenizer, on_progress=ended.append) as engine:
        group, folder = engine.process.pid, engine.folder
        expected = HFEngine(model, tokenizer).generate(PROMPTS, GREEDY)
        assert [c.token_ids for c in engine.generate(PROMPTS, GREEDY)] == [c.token_ids for c in expected]
        assert ended == [2] * 4
        first = engine.generate(PROMPTS, SAMPLED)
        assert engine.generate(PROMPTS, SAMPLED) == first
        assert all(len({c.text for c in first[i : i + 4]}) > 1 for i in range(0, 16, 4))
        moved(model)
        engine.sync(model)
        second = engine.generate(PROMPTS, SAMPLED)
        assert largest_difference(second, trainer_log_probs(model, tokenizer, second, 4, 1.0)) < 1e-3
        assert httpx2.get(engine.url + "/calls").json()[-6:-4] == ["/collective_rpc", "/reset_prefix_cache"]
        assert engine.generate([], SAMPLED) == []
    assert group_is_gone(group)
    assert not folder.exists()
    engine.close()
    with pytest.raises(EngineError, match="closed"):
        engine.sync(model)


def test_failures_of_a_request(running, policy):
    at = EngineOptions(engine_url=running)
    with VLLMServerEngine(*policy, options=at) as engine:
        assert len(engine.generate(PROMPTS[:1], replace(SAMPLED, seed=15))) == 4  # 500, then well
    for seed, message in (
        (13, r"answered /v1/completions with status 500: .*out of luck"),
        (16, r"with what is no JSON: '<html>'"),
        (17, r"without 4 choices of ids and log-probs"),
        (14, r"gave no answer to /v1/completions within engine_time_limit=1 seconds"),
    ):
        with pytest.raises(EngineError, match=message):
            VLLMServerEngine(*policy, options=replace(at, engine_time_limit=1.0)).generate(
                PROMPTS[:1], replace(SAMPLED, seed=seed)
            )


def test_a_server_that_dies_is_one_error_with_its_last_lines(stand_in, policy):
    engine = VLLMServerEngine(*policy)
    group = engine.process.pid
    with pytest.raises(
        EngineError,
        match=r"died; it is not there for(.|\n)*the last words of the server(.|\n)*ended with exit status 9",
    ):
        engine.generate(PROMPTS, replace(SAMPLED, seed=18))
    assert group_is_gone(group)


def test_failures_at_the_start(stand_in, policy, monkeypatch):
    monkeypatch.setenv("FAKE_SERVER", "dies")
    with pytest.raises(EngineError, match=r"died before it was ready(.|\n)*no such device(.|\n)*exit status 7"):
        VLLMServerEngine(*policy)
    monkeypatch.setenv("FAKE_SERVER", "deaf")
    with pytest.raises(EngineError, match="was not healthy within start_limit_s=1"):
        VLLMServerEngine(*policy, start_limit_s=1.0)


def test_a_port_in_use(stand_in, policy):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ValueError, match=rf"engine_port={port} is in use .*engine_url='http://127\.0\.0\.1:{port}'"
        ):
            VLLMServerEngine(*policy, options=EngineOptions(engine_port=port))


def test_attaching(running, policy):
    model, tokenizer = load_model("tiny", device="cpu")
    moved(model)
    with VLLMServerEngine(model, tokenizer, options=EngineOptions(engine_url=running)) as engine:
        assert engine.max_model_len == 200
        completions = engine.generate(PROMPTS, SAMPLED)  # of the policy's weights, though the server had others
        assert largest_difference(completions, trainer_log_probs(model, tokenizer, completions, 4, 1.0)) < 1e-3
        with pytest.raises(ValueError, match=r"prompts\[0\] .*max_tokens=199 exceeds the engine's max_model_len=200"):
            engine.generate(PROMPTS, replace(SAMPLED, max_tokens=199))
    with (
        pytest.raises(EngineError, match="status 500"),
        VLLMServerEngine(model, tokenizer, options=EngineOptions(engine_url=running)) as engine,
    ):
        engine.generate(PROMPTS, replace(SAMPLED, seed=13))


def test_a_server_that_does_not_fit(running, policy, random_model_folder):
    model, tokenizer = policy
    other, its_tokenizer = load_model(random_model_folder, device="cpu")
    at = EngineOptions(engine_url=running)
    with pytest.raises(
        ValueError, match=r"serves '.*data/tiny', which is not the policy '.*random.*': .*hidden_size 128 there"
    ):
        VLLMServerEngine(other, its_tokenizer, options=at)
    with pytest.raises(ValueError, match="its tokenizer makes other tokens"):
        VLLMServerEngine(model, its_tokenizer, options=at)
    with pytest.raises(ValueError, match=r"gpu\.example.* is another machine.*engine_folder"):
        VLLMServerEngine(model, tokenizer, options=EngineOptions(engine_url="http://gpu.example:8000"))
    nobody = f"http://127.0.0.1:{vllm_server.free_port()}"
    with pytest.raises(EngineError, match=f"the vLLM server at {nobody} is not there for /v1/models"):
        VLLMServerEngine(model, tokenizer, options=EngineOptions(engine_url=nobody))


def test_raw_log_probs_are_refused(stand_in, monkeypatch, request, policy):
    monkeypatch.setenv("FAKE_LOGPROBS", "raw_logprobs")
    url = request.getfixturevalue("running")
    with pytest.raises(ValueError, match=r"gives raw_logprobs.*--logprobs-mode processed_logprobs"):
        VLLMServerEngine(*policy, options=EngineOptions(engine_url=url))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_server_and_its_files_end_with_the_process_that_started_it(number, tmp_path):
    script = f"""
import time
from grpo import VLLMServerEngine, load_model
from grpo.rollouts import options, vllm_server
vllm_server.SERVER = {FAKE!r}
options.check_vllm = lambda: None
engine = VLLMServerEngine(*load_model("tiny", device="cpu"))
print(engine.process.pid, engine.folder, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as trainer:
        group, folder = trainer.stdout.readline().split()
        assert Path(folder, "log").is_file()
        os.kill(trainer.pid, number)
        assert trainer.wait() == -number
    assert group_is_gone(int(group))
    assert not Path(folder).exists()


def settings_of(folder):
    return TrainSettings(
        engine="vllm-server",
        steps=3,
        rollout_batch=16,
        train_batch=16,
        train_questions=32,
        validation_questions=4,
        validate_every=3,
        threads=1,
        device="cpu",
        run_dir=str(folder),
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Metrics of a run that nothing happened to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm_server, "SERVER", FAKE)
        patch.setattr(options, "check_vllm", lambda: None)
        return train(settings_of(tmp_path_factory.mktemp("runs") / "whole"), progress=False).run.read("metrics")


def kill_server(engine):
    rows = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout.split("\n")
    child = next(int(row.split()[0]) for row in rows if row.strip() and row.split()[1] == str(engine.process.pid))
    os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(("method", "saved"), [("rollout", 1), ("train_on", 2), ("validate", 3)])
def test_a_run_whose_server_is_killed_goes_on_as_if_it_had_not(whole, stand_in, tmp_path, monkeypatch, method, saved):
    """Killed before the rollout of step 2, before the sync after its update, before the validation after step 3."""
    original = getattr(Trainer, method)

    def dying(self, *arguments):
        if self.step == (3 if method == "validate" else 2):
            kill_server(self.engine)
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, method, dying)
        with pytest.raises(TrainingStopped, match=rf"after step {saved} is in .*--resume; .*(died|is not there)"):
            train(settings_of(tmp_path / "killed"), progress=False)
    resumed = train(settings_of(tmp_path / "killed"), resume=True, progress=False)
    assert RunDir(resumed.run.path).read("metrics") == whole


@pytest.mark.vllm
@pytest.mark.skipif(not HAS_VLLM, reason="no vLLM")
def test_vllms_server_samples_the_policys_before_and_after_a_sync(real, monkeypatch):
    model, tokenizer = real.model, real.tokenizer
    assert real.generate(PROMPTS, GREEDY)[0].text == HFEngine(model, tokenizer).generate(PROMPTS, GREEDY)[0].text
    greedy = [c.token_ids for c in HFEngine(model, tokenizer).generate(PROMPTS, GREEDY)]
    assert [c.token_ids for c in real.generate(PROMPTS, GREEDY)] == greedy
    sampling = replace(SAMPLED, temperature=0.7)
    first = real.generate(PROMPTS, sampling)
    assert real.generate(PROMPTS, sampling) == first
    assert real.generate(PROMPTS, replace(sampling, seed=6)) != first
    assert all(len({c.text for c in first[i : i + 4]}) > 1 for i in range(0, 16, 4))
    assert largest_difference(first, trainer_log_probs(model, tokenizer, first, 4, 0.7)) < 1e-3
    moved(model)
    real.sync(model)
    second = real.generate(PROMPTS, sampling)
    assert largest_difference(second, trainer_log_probs(model, tokenizer, second, 4, 0.7)) < 1e-3

    # A prompt of several blocks of the prefix cache: one that stayed would be read again.
    long = [" ".join([prompt] * 8) for prompt in PROMPTS[:2]]
    one = Sampling(max_tokens=8, seed=1)

    def off(completions):
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in long]
        with torch.no_grad():
            rows = [
                model(torch.tensor([a + c.token_ids])).logits[0].log_softmax(-1)
                for a, c in zip(ids, completions, strict=True)
            ]
        return max(
            abs(row[len(a) - 1 + i, token].item() - c.log_probs[i])
            for row, a, c in zip(rows, ids, completions, strict=True)
            for i, token in enumerate(c.token_ids)
        )

    assert off(real.generate(long, one)) < 1e-3
    moved(model)
    with monkeypatch.context() as patch:
        patch.setattr(VLLMServerEngine, "_reset_prefix_cache", lambda self: None)
        real.sync(model)
    assert off(real.generate(long, one)) > 1e-2
    real.sync(model)
    assert off(real.generate(long, one)) < 1e-3


@pytest.mark.vllm
@pytest.mark.skipif(not HAS_VLLM, reason="no vLLM")
def test_a_run_attached_to_vllms_server_then_the_server_is_killed(real, tmp_path):
    """Last: it kills the shared server. Its own engine resumes the run in process, to the same metrics."""
    settings = replace(settings_of(tmp_path / "killed"), engine_url=real.url)
    whole = train(replace(settings, run_dir=str(tmp_path / "whole")), progress=False)
    rollout = Trainer.rollout

    def killed_in_step_2(self):
        if self.step == 2:
            kill_server(real)
        return rollout(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "rollout", killed_in_step_2)
        patch.setattr(vllm_server, "WAITS", (0.1, 0.2))
        with pytest.raises(TrainingStopped, match=r"after step 1 is in .*--resume; the vLLM server at .* is not there"):
            train(settings, progress=False)
    resumed = train(replace(settings, engine_url=""), resume=True, progress=False)
    assert RunDir(resumed.run.path).read("metrics") == RunDir(whole.run.path).read("metrics")
