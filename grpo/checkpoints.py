"""Checkpoints: everything that a run needs to go on as if it had not stopped.

A checkpoint is a folder: model and tokenizer as `save_pretrained` writes them (so that it loads as a model too), the
optimizer and every random generator in trainer.pt, and a manifest with the size of each file. It is written beside,
flushed, and renamed: a folder with the right name is whole.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grpo.runs import RunDirError

MANIFEST = "manifest.json"


def random_states() -> dict[str, Any]:
    """States of Python's, NumPy's and torch's generators, every GPU's included."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 (the global generator is what other people's code draws from)
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Put back what random_states returned."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    if states["cuda"]:
        torch.cuda.set_rng_state_all(states["cuda"])


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)


def save_checkpoint(folder: Path, model: Any, tokenizer: Any, optimizer: torch.optim.Optimizer, **counts: int) -> None:
    """Write a checkpoint; `counts` are small numbers that restore_checkpoint returns."""
    beside = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    model.save_pretrained(beside, max_shard_size="100GB")
    tokenizer.save_pretrained(beside)
    torch.save(
        {"optimizer": optimizer.state_dict(), "random": random_states(), "counts": counts}, beside / "trainer.pt"
    )
    sizes = {str(p.relative_to(beside)): p.stat().st_size for p in sorted(beside.rglob("*")) if p.is_file()}
    (beside / MANIFEST).write_text(json.dumps(sizes, indent=2) + "\n", encoding="utf-8")
    for path in [*beside.rglob("*"), beside]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    if folder.exists():
        shutil.rmtree(folder)
    beside.rename(folder)


def check_checkpoint(folder: Path) -> None:
    """Raise RunDirError, naming the file, when a checkpoint is not what its manifest says it is."""
    advice = "delete that folder to resume from an older checkpoint, or from the start"
    if not (folder / MANIFEST).is_file():
        raise RunDirError(f"checkpoint {folder} is cut short: {MANIFEST} is missing; {advice}")
    try:
        sizes = dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise RunDirError(
            f"checkpoint {folder} is cut short: {MANIFEST} is no list of files ({error}); {advice}"
        ) from error
    for name, size in sizes.items():
        found = (folder / name).stat().st_size if (folder / name).is_file() else None
        if found != size:
            has = "is missing" if found is None else f"has {found} bytes"
            raise RunDirError(f"checkpoint {folder} is cut short: {name} {has}, expected {size} bytes; {advice}")


def restore_checkpoint(folder: Path, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Load optimizer and random generators of a checkpoint (its model is loaded like any other); returns its counts."""
    # The generators' states are no tensors, so the safe loader refuses them; the file is the user's own run.
    try:
        state = torch.load(folder / "trainer.pt", map_location="cpu", weights_only=False)
    except Exception as error:  # the size is right and the content is not: whatever pickle makes of that
        raise RunDirError(
            f"checkpoint {folder}: trainer.pt cannot be read ({type(error).__name__}: {error}); "
            "delete that folder to resume from an older checkpoint, or from the start"
        ) from error
    optimizer.load_state_dict(state["optimizer"])
    set_random_states(state["random"])
    return state["counts"]
