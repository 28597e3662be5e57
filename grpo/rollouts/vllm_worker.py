"""The process in which the `vllm` engine's model lives: it loads, samples and takes new weights, as its pipe tells it.

It is a process of its own since importing vLLM changes transformers' classes, which breaks the trainer's forward pass.
Started by vllm_local.py as `python -m grpo.rollouts.vllm_worker FILE_DESCRIPTOR`; each message is (method, arguments),
each reply (True, result) or (False, message of the error). It ends when the pipe does.
"""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection
from typing import Any


class Worker:
    """vLLM's LLM, and the three things that the engine asks of it."""

    def __init__(self, options: dict[str, Any]) -> None:
        from vllm import LLM

        # Chunked prefill and a seed for each request do not go together on a CPU; without chunks a prompt must fit.
        self.llm = LLM(
            **options,
            max_num_batched_tokens=max(2048, options["max_model_len"]),
            enable_chunked_prefill=False,
            logprobs_mode="processed_logprobs",
            disable_log_stats=True,
        )

    def generate(
        self, prompt_ids: list[list[int]], seeds: list[int], params: dict[str, Any]
    ) -> list[tuple[list[int], list[float], str]]:
        """(ids, log-probs, finish reason) of params["n"] samples for each prompt, those of one prompt adjacent."""
        from vllm import SamplingParams

        outputs = self.llm.generate(
            [{"prompt_token_ids": ids} for ids in prompt_ids],
            [SamplingParams(**params, seed=seed, logprobs=0, detokenize=True) for seed in seeds],
            use_tqdm=False,
        )
        return [
            (
                list(sample.token_ids),
                [float(at[token].logprob) for token, at in zip(sample.token_ids, sample.logprobs, strict=True)],
                sample.finish_reason,
            )
            for output in outputs
            for sample in sorted(output.outputs, key=lambda sample: sample.index)
        ]

    def load(self, path: str) -> None:
        """Take the weights of a safetensors file, which holds every name of the state dict, and forget cached prefixes."""
        from safetensors.torch import load_file

        weights = load_file(path)
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(weights.items())})
        # Keys and values of the old weights would be taken for those of the new ones.
        self.llm.reset_prefix_cache()


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
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    serve(Connection(int(sys.argv[1])))
