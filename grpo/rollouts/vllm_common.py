"""What the engines `vllm` and `vllm-server` share: requests and answers, and the way of the weights.

Weights go by file where there is no GPU: the whole state dict, the head of tied embeddings too. A checkpoint as
`save_pretrained` writes it leaves that head out, and vLLM would keep its old one: greedy texts stay the same, log-probs
do not. From a GPU they go by vLLM's own transfer (vllm_transfer.py).
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file

from grpo.models import eos_token_ids
from grpo.rollouts.base import Completion, Engine, EngineError, Sampling, cut_after_stop, decode, encode_prompts
from grpo.rollouts.options import EngineOptions
from grpo.rollouts.vllm_transfer import Transfer

MIN_TEMPERATURE = 0.01  # vLLM raises a smaller one to this, and says so only in its log
LAST_LINES = 15
DType = Literal["auto", "float32", "bfloat16"]
Sample = tuple[list[int], list[float], str]  # ids, their log-probs, finish reason


class VLLMBase(Engine):
    """Samples with vLLM from a copy of the policy, wherever that is."""

    what: str
    """What the errors call it."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        options: EngineOptions,
        dtype: DType,
        max_model_len: int | None,
        on_progress: Callable[[int], object] | None,
    ) -> None:
        self.model, self.tokenizer, self.options = model, tokenizer, options
        self.on_progress = on_progress
        self.eos_token_ids = eos_token_ids(model, tokenizer)
        self.max_model_len: int = max_model_len or model.config.max_position_embeddings
        self.dtype = dtype
        if dtype == "auto":
            self.dtype = "bfloat16" if torch.cuda.is_available() else "float32"
        self.trainer_gpu = (model.device.index or 0) if model.device.type == "cuda" else None
        self.gpus = options.engine_gpus or (self.trainer_gpu or 0,)
        self.transfer: Transfer | None = None
        self.asleep = False
        self.folder = Path(tempfile.mkdtemp(prefix="grpo-vllm-", dir=options.engine_folder or None))
        # Also at the interpreter's end, for an engine that nobody closed.
        self.close_files = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    @property
    def transfer_backend(self) -> Literal["ipc", "nccl"] | None:
        """How the weights go: None by file, ipc within a GPU, nccl from one to others (two ranks on one are refused)."""
        if self.trainer_gpu is None or self.options.engine_folder:
            return None
        return "ipc" if self.gpus == (self.trainer_gpu,) and not self.options.engine_url else "nccl"

    def vllm_options(self) -> dict[str, Any]:
        """Arguments of vLLM's LLM, which are options of its server too."""
        options: dict[str, Any] = {
            "dtype": self.dtype,
            "max_model_len": self.max_model_len,
            "tensor_parallel_size": self.options.tensor_parallel_size,
            "logprobs_mode": "processed_logprobs",
            "disable_log_stats": True,
        }
        if not torch.cuda.is_available():
            # Chunked prefill and a seed for each request do not go together on a CPU; without chunks a prompt must fit.
            # Compiling takes longer there than it saves.
            prefill = {"enable_chunked_prefill": False, "max_num_batched_tokens": max(2048, self.max_model_len)}
            return options | prefill | {"enforce_eager": True}
        options["gpu_memory_utilization"] = self.options.engine_memory
        options["enable_sleep_mode"] = self.options.engine_sleep
        if self.transfer_backend:
            options["weight_transfer_config"] = {"backend": self.transfer_backend}
        return options

    def vllm_environment(self) -> dict[str, str]:
        """Environment of a vLLM that is started here: this one, and the engine's GPUs alone."""
        environment = {"VLLM_CPU_KVCACHE_SPACE": "2"} | os.environ
        if torch.cuda.is_available():
            names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(names[i] if names != [""] else str(i) for i in self.gpus)
        return environment

    def generate(self, prompts: Sequence[str], sampling: Sampling) -> list[Completion]:
        """sampling.n completions of each prompt, in order, those of one prompt adjacent.

        Raises ValueError, naming the prompt, when one is empty or does not fit the context together with max_tokens, and
        for a temperature between 0 and 0.01; EngineError when vLLM fails.
        """
        if 0 < sampling.temperature < MIN_TEMPERATURE:
            raise ValueError(f"temperature={sampling.temperature!r} must be 0 or at least {MIN_TEMPERATURE} with vLLM")
        if self.asleep:
            raise EngineError("the engine sleeps, without weights; sync it before it generates")
        prompt_ids = encode_prompts(prompts, sampling, self.model, self.tokenizer)
        for number, ids in enumerate(prompt_ids):
            if len(ids) + sampling.max_tokens > self.max_model_len:
                raise ValueError(
                    f"prompts[{number}] ({len(ids)} tokens) with max_tokens={sampling.max_tokens} exceeds the engine's "
                    f"max_model_len={self.max_model_len}"
                )
        greedy = sampling.temperature == 0  # every sample of a prompt is the same then, and vLLM refuses to make two
        params = {
            "n": 1 if greedy else sampling.n,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "stop": list(sampling.stop),
            "include_stop_str_in_output": True,
            "stop_token_ids": self.eos_token_ids,
            "logprobs": 0,
        }
        # vLLM seeds a prompt's samples with seed, seed + 1, ...: those of two prompts must not meet.
        seeds = [(sampling.seed * 1_000_003 + number * sampling.n) % 2**62 for number in range(len(prompts))]
        completions: list[Completion] = []
        for samples in self._sample(prompt_ids, seeds, params) if prompts else []:
            made = [self._completion(*sample, sampling.stop) for sample in samples] * (sampling.n if greedy else 1)
            completions += made
            if self.on_progress:
                self.on_progress(len(made))
        return completions

    def _completion(
        self, ids: list[int], log_probs: list[float], finish_reason: str, stops: tuple[str, ...]
    ) -> Completion:
        text = decode(self.tokenizer, ids)
        cut = cut_after_stop(text, stops)
        reason: Literal["stop", "length"] = "length" if finish_reason == "length" and cut is None else "stop"
        return Completion(text if cut is None else cut, ids, log_probs, reason)

    def sync(self, policy: Any) -> None:
        """Take over the weights of `policy`, awake; after this, generate samples from them."""
        if not self.folder.exists():
            raise EngineError(f"{self.what} is closed")
        if self.asleep:
            torch.cuda.empty_cache()  # what the update needed and holds no more is vLLM's again
            self._wake_up("weights")
        if self.transfer is None:
            write_weights(policy, self.folder / "weights")
            self._load(self.folder / "weights")
        else:
            try:
                self.transfer.send(policy)
            except Exception as error:  # of vLLM, of CUDA, of HTTP
                raise self.failed(f"took no weights: {type(error).__name__}: {error}") from error
        if self.asleep:
            self._wake_up("kv_cache")
            self.asleep = False
        self._reset_prefix_cache()  # keys and values of the old weights would be taken for those of the new ones

    def sleep(self) -> None:
        """With engine_sleep, free vLLM's GPU memory until the next sync: its cache, and its weights, which that renews.

        That is vLLM's level 2; level 1 would keep a copy of the weights in the machine's memory for nothing.
        """
        if self.options.engine_sleep and not self.asleep:
            self._sleep()
            self.asleep = True

    def failed(self, problem: str) -> EngineError:
        """Close, and return the error that says what vLLM did, with the last lines that it wrote."""
        log = self.folder / "log"
        lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:] if log.exists() else []
        self.close()
        return EngineError("\n  ".join([f"{self.what} {problem}", *(["its last lines:", *lines] if lines else [])]))

    @abstractmethod
    def _sample(self, prompt_ids: list[list[int]], seeds: list[int], params: dict[str, Any]) -> Iterable[list[Sample]]:
        """The samples of each prompt, in order."""

    @abstractmethod
    def _load(self, folder: Path) -> None:
        """Load the weights in that folder."""

    @abstractmethod
    def _reset_prefix_cache(self) -> None:
        """Forget the keys and values of earlier prompts."""

    @abstractmethod
    def _sleep(self) -> None:
        """Free the GPU's memory, level 2."""

    @abstractmethod
    def _wake_up(self, what: Literal["weights", "kv_cache"]) -> None:
        """Take that memory again."""


def write_weights(policy: Any, folder: Path) -> None:
    """Write the whole state dict to folder/model.safetensors."""
    weights: dict[str, torch.Tensor] = {}
    places: set[int] = set()
    for name, value in policy.state_dict().items():
        value = value.detach().cpu().contiguous()
        weights[name] = value.clone() if value.data_ptr() in places else value  # tied: the file holds it twice
        places.add(value.data_ptr())
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
