"""Settings of the vLLM engines, and the weights' way from a GPU, with stand-ins for the GPU."""

import contextlib
import sys
import types
from types import SimpleNamespace

import pytest
import torch
from test_vllm import HAS_VLLM

from grpo import EngineOptions, TrainSettings, load_model
from grpo.cli import main
from grpo.rollouts import check_engine, options
from grpo.rollouts.vllm_common import VLLMBase
from grpo.rollouts.vllm_transfer import StateDict, Transfer, init_info

CPU = torch.device("cpu")


class Recorder(VLLMBase):
    """Writes down what it is asked."""

    what = "the recorder"

    def __init__(self, model, given):
        super().__init__(model, SimpleNamespace(eos_token_id=1), given, "auto", 64, None)
        self.calls = []

    def _sample(self, prompt_ids, seeds, params):
        return []

    def _load(self, folder):
        self.calls.append("load")

    def _reset_prefix_cache(self):
        self.calls.append("reset_prefix_cache")

    def _sleep(self):
        self.calls.append("sleep")

    def _wake_up(self, what):
        self.calls.append(f"wake_up {what}")

    def close(self):
        self.close_files()


@pytest.fixture(autouse=True)
def no_vllm_needed(monkeypatch):
    monkeypatch.setattr(options, "check_vllm", lambda: None)


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("engine", "given", "message"),
    [
        ("hf", {"engine_sleep": True}, r"engine_sleep=True is a setting of the vLLM engines; leave it out with hf"),
        ("vllm", {"engine_url": "http://a:1"}, r"engine_url='http://a:1' is a setting of engine='vllm-server'"),
        ("vllm", {"data_parallel_size": 2}, r"data_parallel_size=2 is a setting of engine='vllm-server'"),
        ("vllm-server", {"engine_url": "a:8000"}, r"engine_url='a:8000' must be like http://host:8000"),
        (
            "vllm-server",
            {"engine_url": "http://a:1", "engine_port": 1},
            r"engine_port=1 is for a server that is started",
        ),
        ("vllm-server", {"engine_folder": "x"}, r"engine_folder='x' is for a server at engine_url"),
        ("vllm", {"engine_time_limit": 0.0}, r"engine_time_limit=0\.0 must be a number of seconds above 0"),
        ("vllm", {"engine_memory": 1.5}, r"engine_memory=1\.5 must be a share"),
        ("vllm", {"tensor_parallel_size": 0}, r"tensor_parallel_size=0 must be at least 1"),
        (
            "vllm",
            {"tensor_parallel_size": 2},
            r"tensor_parallel_size=2 x data_parallel_size=1 needs engine_gpus, 2 GPUs",
        ),
        ("vllm", {"engine_gpus": (1, 2)}, r"engine_gpus=\(1, 2\) must be .* = 1 different numbers"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(engine, given, message):
    with pytest.raises(ValueError, match=message):
        TrainSettings(engine=engine, **given)


def test_gpus_that_are_not_there_are_refused(two_gpus):
    with pytest.raises(ValueError, match=r"engine_gpus=\(1, 2\): there are 2 GPUs here"):
        check_engine("vllm", EngineOptions(engine_gpus=(1, 2), tensor_parallel_size=2), torch.device("cuda:0"))
    with pytest.raises(ValueError, match=r"engine_gpus=\(0, 1\) holds the trainer's GPU, 0"):
        check_engine("vllm", EngineOptions(engine_gpus=(0, 1), tensor_parallel_size=2), torch.device("cuda:0"))
    check_engine("vllm", EngineOptions(engine_gpus=(1,)), torch.device("cuda:0"))


def test_a_gpu_is_asked_for_where_there_is_none(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match="engine_sleep=True frees a GPU's memory, and there is no GPU here"):
        check_engine("vllm", EngineOptions(engine_sleep=True), CPU)
    line = ["train", "--engine", "vllm", "--engine-gpus", "0", "1", "--tensor-parallel-size", "2"]
    assert main([*line, "--run-dir", str(tmp_path / "run")]) == 2
    assert "there are 0 GPUs here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_engine_sleeps_through_the_update_and_wakes_weights_first():
    model, _ = load_model("tiny", device="cpu")
    engine = Recorder(model, EngineOptions(engine_sleep=True))
    engine.sleep()
    engine.sleep()
    with pytest.raises(Exception, match="sleeps, without weights"):
        engine.generate(["1"], SimpleNamespace(temperature=1.0))
    engine.sync(model)
    engine.sync(model)
    one = ["load", "reset_prefix_cache"]
    assert engine.calls == ["sleep", "wake_up weights", "load", "wake_up kv_cache", "reset_prefix_cache", *one]
    awake = Recorder(model, EngineOptions())
    awake.sleep()
    assert awake.calls == []


def test_where_the_engine_runs_and_how_weights_go_there(two_gpus, monkeypatch):
    model, _ = load_model("tiny", device="cpu")
    on_gpu = SimpleNamespace(device=torch.device("cuda:0"), config=model.config, generation_config=None)
    same, other = Recorder(on_gpu, EngineOptions(engine_sleep=True)), Recorder(on_gpu, EngineOptions(engine_gpus=(1,)))
    attached = EngineOptions(engine_url="http://a:1")
    assert (same.transfer_backend, other.transfer_backend) == ("ipc", "nccl")
    assert Recorder(on_gpu, attached).transfer_backend == "nccl"
    assert Recorder(model, EngineOptions()).transfer_backend is None
    assert same.vllm_options()["weight_transfer_config"] == {"backend": "ipc"}
    assert same.vllm_options()["enable_sleep_mode"]
    assert same.vllm_options()["gpu_memory_utilization"] == 0.4
    assert other.vllm_environment()["CUDA_VISIBLE_DEVICES"] == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert (same.vllm_environment()["CUDA_VISIBLE_DEVICES"], other.vllm_environment()["CUDA_VISIBLE_DEVICES"]) == (
        "4",
        "7",
    )


def test_a_transfer_sends_the_head_of_tied_embeddings_too(monkeypatch):
    model, _ = load_model("tiny", device="cpu")
    sent = []

    class Sender:
        def send_weights(self):
            sent.append([name for name, _ in self.source])

        def shutdown(self):
            sent.append("shut down")

    def trainer_init(info, *, client, source):
        sender = Sender()
        sender.source = source
        return sender

    fake = types.ModuleType("vllm.distributed.weight_transfer")
    fake.WeightTransferTrainerFactory = SimpleNamespace(trainer_init=trainer_init)
    monkeypatch.setitem(sys.modules, "vllm", types.ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.distributed", types.ModuleType("vllm.distributed"))
    monkeypatch.setitem(sys.modules, "vllm.distributed.weight_transfer", fake)
    monkeypatch.setattr("grpo.rollouts.vllm_transfer.init_info", lambda *arguments: arguments)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    transfer = Transfer("ipc", None, model, workers=1)
    transfer.send(model)
    transfer.close()
    assert sent == [list(model.state_dict()), "shut down"]
    assert "lm_head.weight" in sent[0]


@pytest.mark.vllm
@pytest.mark.skipif(not HAS_VLLM, reason="no vLLM")
def test_vllms_own_sender_makes_messages_that_its_receiver_takes(monkeypatch):
    from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
    from vllm.distributed.weight_transfer.nccl_engine import (
        NCCLTrainerWeightTransferEngine,
        NCCLWeightTransferUpdateInfo,
    )

    model, _ = load_model("tiny", device="cpu")
    before = model(torch.tensor([[1, 2, 3]])).logits
    calls, received = [], []

    class Client:
        def init_weight_transfer_engine(self, info):
            calls.append(NCCLWeightTransferInitInfo(**info))

        def start_weight_update(self):
            calls.append("start")

        def update_weights(self, info):
            calls.append(NCCLWeightTransferUpdateInfo(**info))

        def finish_weight_update(self, weight_version=None):
            calls.append("finish")

    monkeypatch.setattr("vllm.distributed.weight_transfer.nccl_engine.open_trainer_endpoint", lambda info: None)
    broadcast = lambda self, source, meta: received.extend(self._checked_iter(source, meta))  # noqa: E731
    monkeypatch.setattr(NCCLTrainerWeightTransferEngine, "_broadcast", broadcast)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    Transfer("nccl", Client(), model, workers=2).send(model)
    assert (calls[0].world_size, calls[0].rank_offset, calls[0].master_address) == (3, 1, "127.0.0.1")
    assert [calls[1], calls[3]] == ["start", "finish"]
    assert calls[2].names == list(model.state_dict())
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in received)
    assert init_info("ipc", 1, "").backend == "ipc"
    assert [meta.name for meta in StateDict(model).metadata()] == calls[2].names
    assert torch.equal(model(torch.tensor([[1, 2, 3]])).logits, before)  # transformers' classes are as they were
