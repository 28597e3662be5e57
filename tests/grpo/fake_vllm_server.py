"""Stands in for vLLM's server where vLLM is not installed: the same calls, a transformers model behind them.

It takes the options of the server. FAKE_SERVER in the environment chooses what goes wrong: dies, deaf (never healthy).
A request's seed // 1_000_003 chooses too: 13 is 500 for ever, 14 hangs, 15 is 500 once, 16 is no JSON, 17 lacks the ids, 18
dies; so does a POST to /die.
"""

import argparse
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from urllib.parse import urlsplit

from safetensors.torch import load_file

from grpo import HFEngine, Sampling, load_model

parser = argparse.ArgumentParser(allow_abbrev=False)
for flag, kind in (("model", str), ("host", str), ("port", int), ("max-model-len", int)):
    parser.add_argument(f"--{flag}", type=kind, required=True)
flags = parser.parse_known_args()[0]
name = flags.model
logprobs_mode = os.environ.get("FAKE_LOGPROBS", "processed_logprobs")
failed: set[int] = set()
lock = Lock()
calls: list[str] = []


class Handler(BaseHTTPRequestHandler):
    def answer(self, value, status=200):
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        path = urlsplit(self.path).path
        served = {"id": "served", "root": os.environ.get("FAKE_ROOT", name), "max_model_len": flags.max_model_len}
        if not os.environ.get("FAKE_ATTACHED"):
            served["id"] = name
        pages = {
            "/health": {},
            "/v1/models": {"data": [served]},
            "/version": {"version": "0.32.0"},
            "/server_info": {"vllm_config": {"model_config": {"logprobs_mode": logprobs_mode}}},
            "/calls": calls,
        }
        self.answer(pages.get(path, {}), 200 if path in pages else 404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        calls.append(self.path)
        if self.path == "/v1/completions":
            with lock:
                self.complete(body)
        elif self.path == "/tokenize":
            self.answer({"tokens": engine.tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]})
        elif self.path == "/collective_rpc":
            assert body["method"] == "reload_weights"
            with lock:
                engine.model.load_state_dict(load_file(body["kwargs"]["weights_path"] + "/model.safetensors"))
            self.answer({"results": [None]})
        elif self.path == "/reset_prefix_cache":
            self.answer({"success": True})
        elif self.path == "/die":
            os._exit(3)
        else:
            self.answer({})

    def complete(self, body):
        failure = body["seed"] // 1_000_003
        first = failure not in failed
        failed.add(failure)
        if failure == 13 or (failure == 15 and first):
            return self.answer({"error": "out of luck"}, 500)
        if failure == 14:
            time.sleep(60)
        if failure == 16:
            return self.answer(b"<html>")
        if failure == 17:
            return self.answer({"choices": []})
        if failure == 18:
            print("the last words of the server", flush=True)
            os._exit(9)
        assert body["model"] == ("served" if os.environ.get("FAKE_ATTACHED") else name)
        sampling = Sampling(
            body["n"], body["temperature"], body["top_p"], body["max_tokens"], tuple(body["stop"]), body["seed"]
        )
        completions = engine.generate([engine.tokenizer.decode(body["prompt"])], sampling)
        choices = [
            {
                "index": i,
                "token_ids": c.token_ids,
                "logprobs": {"token_logprobs": c.log_probs},
                "finish_reason": c.finish_reason,
            }
            for i, c in enumerate(completions)
        ]
        return self.answer({"choices": choices[::-1]})

    def log_message(self, *_arguments):
        pass


if os.environ.get("FAKE_SERVER") == "dies":
    print("no such device", flush=True)
    sys.exit(7)
engine = HFEngine(*load_model(os.environ.get("FAKE_ROOT", name), device="cpu"))
if os.environ.get("FAKE_SERVER") == "deaf":
    time.sleep(60)
ThreadingHTTPServer((flags.host, flags.port), Handler).serve_forever()
