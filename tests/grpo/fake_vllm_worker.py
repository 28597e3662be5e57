"""Stands in for grpo.rollouts.vllm_worker where vLLM is not installed: the same pipe, a transformers model behind it.

The seed of the first prompt chooses a failure: 13 dies, 14 hangs, 15 fails.
"""

import os
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from safetensors.torch import load_file

from grpo import HFEngine, Sampling, load_model

connection = Connection(int(sys.argv[1]))
engine: Any = None
while True:
    try:
        method, arguments = connection.recv()
    except EOFError:
        break
    if method == "start":
        engine = HFEngine(*load_model(arguments[0]["model"]))
        connection.send((True, None))
    elif method == "load":
        engine.model.load_state_dict(load_file(arguments[0] + "/model.safetensors"))
        connection.send((True, None))
    elif method == "reset_prefix_cache":
        connection.send((True, None))
    else:
        prompt_ids, seeds, params = arguments
        failure = seeds[0] // 1_000_003
        if failure == 13:
            print("the last words of the worker", flush=True)
            os._exit(9)
        if failure == 14:
            time.sleep(60)
        if failure == 15:
            connection.send((False, "ValueError: no such parameter"))
            continue
        samples = []
        for ids, seed in zip(prompt_ids, seeds, strict=True):
            prompt = engine.tokenizer.decode(ids)
            sampling = Sampling(
                params["n"],
                params["temperature"],
                params["top_p"],
                params["max_tokens"],
                tuple(params["stop"]),
                seed,
            )
            samples.append([(c.token_ids, c.log_probs, c.finish_reason) for c in engine.generate([prompt], sampling)])
        connection.send((True, samples))
