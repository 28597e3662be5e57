"""The `vllm` engine: sampling with vLLM on this machine, in a process of its own that this one starts and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, Literal

from grpo.models import save_model
from grpo.rollouts.base import EngineError
from grpo.rollouts.options import EngineOptions, check_engine
from grpo.rollouts.vllm_common import DType, Sample, VLLMBase
from grpo.rollouts.vllm_transfer import Transfer

WORKER = [sys.executable, "-m", "grpo.rollouts.vllm_worker"]


class VLLMEngine(VLLMBase):
    """Samples with vLLM from a copy of the policy. Usable as a context manager; closing it ends its process.

    model, tokenizer: the policy; its weights now are what is sampled from until the next sync.
    options: GPUs, their memory, sleep mode.
    dtype: of vLLM's copy; "auto" is bfloat16 on a GPU and float32 on a CPU.
    max_model_len: longest prompt + response, in tokens; default, the model's context.
    on_progress: called with the number of completions when they are all there.

    The same prompts, settings and seed give the same completions. With top_p below 1 log-probs are those of the
    truncated distribution. Raises ModuleNotFoundError without vLLM, ValueError for options that do not fit this machine,
    EngineError when its process does not start.
    """

    what = "vLLM's process"

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        options: EngineOptions | None = None,
        dtype: DType = "auto",
        max_model_len: int | None = None,
        on_progress: Callable[[int], object] | None = None,
    ) -> None:
        options = options or EngineOptions()
        check_engine("vllm", options, model.device)
        super().__init__(model, tokenizer, options, dtype, max_model_len, on_progress)
        self.process: subprocess.Popen[bytes] | None = None
        try:
            save_model(model, tokenizer, self.folder / "model")
            self._start()
            self.ask("start", self.vllm_options() | {"model": str(self.folder / "model")})
            if self.transfer_backend:
                self.transfer = Transfer(self.transfer_backend, Client(self), model, workers=options.gpus_needed)
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        self.connection, theirs = Pipe()
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*WORKER, str(theirs.fileno()), str(self.folder)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the trainer, which finishes its step and then ends this
                env=self.vllm_environment() | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        theirs.close()

    def ask(self, method: str, *arguments: Any) -> Any:
        """What the process answers. Raises EngineError when it fails, dies or takes longer than engine_time_limit."""
        if self.process is None:
            raise EngineError("the vllm engine is closed")
        limit = self.options.engine_time_limit
        try:
            self.connection.send((method, arguments))
            if not self.connection.poll(limit):
                problem = f"gave no answer to {method!r} within engine_time_limit={limit:.0f} seconds"
            else:
                done, result = self.connection.recv()
                if done:
                    return result
                problem = f"failed in {method!r}: {result}"
        except (EOFError, OSError):
            problem = f"died in {method!r}, exit status {self.process.wait(10)}"
        raise self.failed(problem)

    def _sample(self, prompt_ids: list[list[int]], seeds: list[int], params: dict[str, Any]) -> Iterable[list[Sample]]:
        return self.ask("generate", prompt_ids, seeds, params)

    def _load(self, folder: Path) -> None:
        self.ask("load", str(folder))

    def _reset_prefix_cache(self) -> None:
        self.ask("reset_prefix_cache")

    def _sleep(self) -> None:
        self.ask("sleep")

    def _wake_up(self, what: Literal["weights", "kv_cache"]) -> None:
        self.ask("wake_up", what)

    def close(self) -> None:
        """End the process, and those that it started, and remove its files; a second call does nothing."""
        if self.process is not None:
            self.connection.close()
            if self.process.returncode is None:  # else the number of the group is no longer ours
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
            self.process = None
        self.close_files()


class Client:
    """vLLM's VLLMWeightSyncClient over the pipe of a VLLMEngine."""

    def __init__(self, engine: VLLMEngine) -> None:
        self.ask = engine.ask

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Make the worker ready to receive."""
        self.ask("init_weight_transfer_engine", init_info)

    def start_weight_update(self) -> None:
        """Begin an update."""
        self.ask("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        """Receive the weights that update_info names."""
        self.ask("update_weights", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """End the update."""
        self.ask("finish_weight_update")
