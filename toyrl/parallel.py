"""Train on several cores: the seeds are dealt out to processes, each of which trains its share at once.

Since a seed's run does not depend on the seeds beside it, the result is that of `toyrl.training.train`, bit for bit. Two
processes with one thread each are about twice as fast as one process, where two threads on tensors this small gain little,
and on a busy machine wait for each other at every step.
"""

from collections.abc import Iterable
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from toyrl.policy import Policy
from toyrl.settings import Settings
from toyrl.training import Run, train


def train_in_processes(
    settings: Settings, seeds: int | Iterable[int], workers: int = 2, held_out: Tensor | None = None
) -> Run:
    """Train like `train(settings, seeds, held_out=held_out)`, the seeds dealt out to `workers` processes.

    Processes are forked, so that settings may hold any callable; where the system cannot fork, one process does it all.
    Raises ValueError for workers < 1, and RuntimeError, with the cause, when a worker fails.
    """
    if workers < 1:
        raise ValueError(f"workers={workers} must be at least 1")
    seeds = list(range(seeds) if isinstance(seeds, int) else seeds)
    workers = min(workers, len(seeds))
    if workers <= 1 or "fork" not in get_all_start_methods():
        return train(settings, seeds, held_out=held_out)
    shares = [seeds[k * len(seeds) // workers : (k + 1) * len(seeds) // workers] for k in range(workers)]
    context = get_context("fork")
    pipes, processes = [], []
    for share in shares:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(sender, settings, share, held_out), daemon=True)
        process.start()
        sender.close()
        pipes.append(receiver)
        processes.append(process)
    answers = [_receive(receiver) for receiver in pipes]
    for process in processes:
        process.join()
    failed = next((answer for answer in answers if isinstance(answer, str)), None)
    if failed is not None:
        raise RuntimeError(f"a worker failed: {failed}")
    curves, parameters = zip(*answers, strict=True)
    return Run(
        settings,
        seeds,
        {name: torch.cat([torch.from_numpy(part[name]) for part in curves]) for name in curves[0]},
        Policy(*(torch.cat([torch.from_numpy(part) for part in parts]) for parts in zip(*parameters, strict=True))),
    )


def _work(sender: Connection, settings: Settings, seeds: list[int], held_out: Tensor | None) -> None:
    torch.set_num_threads(1)
    try:
        run = train(settings, seeds, held_out=held_out)
        curves = {name: values.numpy() for name, values in run.curves.items()}
        sender.send((curves, [parameter.numpy() for parameter in run.policy.parameters()]))
    except Exception as error:
        sender.send(f"{type(error).__name__}: {error}")


def _receive(receiver: Connection) -> object:
    try:
        return receiver.recv()
    except EOFError:
        return "it ended without an answer"
