"""The process in which the `vllm` engine's model lives: it loads, samples and takes new weights, as its pipe tells it.

It is a process of its own since importing vLLM changes transformers' classes, which breaks the trainer's forward pass.
Started by vllm_local.py as `python -m grpo.rollouts.vllm_worker FILE_DESCRIPTOR FOLDER`; each message is (method,
arguments), each reply (True, result) or (False, message of the error). It ends when the pipe does, and removes the
engine's folder.
"""

from __future__ import annotations

import os
import shutil
import sys
from multiprocessing.connection import Connection
from typing import Any


class Worker:
    """vLLM's LLM, and what the engine asks of it."""

    def __init__(self, options: dict[str, Any]) -> None:
        from vllm import LLM

        self.llm = LLM(**options)

    def generate(
        self, prompt_ids: list[list[int]], seeds: list[int], params: dict[str, Any]
    ) -> list[list[tuple[list[int], list[float], str]]]:
        """For each prompt (ids, log-probs, finish reason) of each of its params["n"] samples."""
        from vllm import SamplingParams

        outputs = self.llm.generate(
            [{"prompt_token_ids": ids} for ids in prompt_ids],
            [SamplingParams(**params, seed=seed, detokenize=True) for seed in seeds],
            use_tqdm=False,
        )
        return [
            [
                (
                    list(sample.token_ids),
                    [float(at[token].logprob) for token, at in zip(sample.token_ids, sample.logprobs, strict=True)],
                    sample.finish_reason,
                )
                for sample in sorted(output.outputs, key=lambda sample: sample.index)
            ]
            for output in outputs
        ]

    def load(self, folder: str) -> None:
        """Take the weights of folder/model.safetensors, which holds every name of the state dict."""
        self.llm.collective_rpc("reload_weights", kwargs={"weights_path": folder})

    def reset_prefix_cache(self) -> None:
        """Forget the keys and values of earlier prompts."""
        if not self.llm.reset_prefix_cache():
            raise RuntimeError("the prefix cache is in use")

    def sleep(self) -> None:
        """Free the GPU's memory, the weights' too."""
        self.llm.sleep(level=2)

    def wake_up(self, what: str) -> None:
        """Take memory again: weights or kv_cache."""
        self.llm.wake_up(tags=[what])

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Make ready to receive weights from the trainer's GPU; the next three are an update."""
        self.llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        """Begin an update."""
        self.llm.start_weight_update()

    def update_weights(self, update_info: Any) -> None:
        """Receive the weights that update_info names."""
        self.llm.update_weights({"update_info": update_info})

    def finish_weight_update(self) -> None:
        """End the update."""
        self.llm.finish_weight_update()


def serve(connection: Connection) -> None:
    """Answer messages until the pipe ends; the first holds the options."""
    worker: Worker | None = None
    while True:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        try:
            result: Any = None
            if method == "start":
                worker = Worker(*arguments)
            else:
                result = getattr(worker, method)(*arguments)
            connection.send((True, result))
        except Exception as error:
            connection.send((False, f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    # One process for front and core: weights then go in without being serialised again.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    serve(Connection(int(sys.argv[1])))
    # The trainer is gone; it may have been killed, and could then not remove its files.
    shutil.rmtree(sys.argv[2], ignore_errors=True)
