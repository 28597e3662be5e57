"""Weights from the trainer's GPU to vLLM's, by vLLM's own transfer: CUDA IPC within a GPU, NCCL from one to others.

The messages are tested against vLLM 0.32.0's own classes, but this was not run on a GPU. Of vLLM only the transfer is
imported here, which leaves transformers' classes as they are.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor


class StateDict:
    """vLLM's WeightSource: every name of the state dict, the head of tied embeddings too, which named_parameters omits."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, value.detach()) for name, value in self.policy.state_dict().items())

    def metadata(self) -> list[Any]:
        """Name, dtype and shape of each, in the same order."""
        from vllm.distributed.weight_transfer import ParamMeta

        return [ParamMeta(name, value.dtype, tuple(value.shape)) for name, value in self]


class Transfer:
    """A connection to vLLM's workers that weights go through.

    client: has the four methods of vLLM's VLLMWeightSyncClient. workers: GPUs of the engine. address: of this machine, as
    the engine's sees it.
    """

    def __init__(
        self, backend: Literal["ipc", "nccl"], client: Any, policy: Any, *, workers: int, address: str = "127.0.0.1"
    ) -> None:
        from vllm.distributed.weight_transfer import WeightTransferTrainerFactory

        self.source = StateDict(policy)
        with torch.cuda.device(policy.device):
            self.sender = WeightTransferTrainerFactory.trainer_init(
                init_info(backend, workers, address), client=client, source=self.source
            )

    def send(self, policy: Any) -> None:
        """Send the weights of `policy`; they are the engine's when this returns."""
        self.source.policy = policy
        with torch.cuda.device(policy.device):
            self.sender.send_weights()

    def close(self) -> None:
        """End the connection."""
        self.sender.shutdown()


def init_info(backend: Literal["ipc", "nccl"], workers: int, address: str) -> Any:
    """vLLM's description of the trainer's end: rank 0 of all."""
    if backend == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        return IPCTrainerInitInfo(rank=0)
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    return NCCLTrainerInitInfo(master_address=address, master_port=free_port(address), world_size=1 + workers, rank=0)


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return probe.getsockname()[1]
