"""What a rollout engine is: prompts in, sampled completions out, weights synced from the policy.

Every engine returns the token ids that it sampled and their log-probs under the sampling temperature. Training uses the
ids; the text is for graders and people.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from grpo.log_probs import check_context
from grpo.tokenization import encode


@dataclass(frozen=True)
class Sampling:
    """How to sample. Raises ValueError at once for values that cannot work."""

    n: int = 1
    """Completions for each prompt (the group size in training)."""
    temperature: float = 1.0
    """Divides the logits; 0 takes the likeliest token."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens with this probability in all; 1 is every token."""
    max_tokens: int = 512
    """Longest completion, in tokens."""
    stop: tuple[str, ...] = ()
    """Strings that end a completion; the text keeps the one that did."""
    seed: int = 0
    """The same prompts, settings and seed give the same completions."""

    def __post_init__(self) -> None:
        for name in ("n", "max_tokens"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)!r} must be an integer of at least 1")
        if not isinstance(self.seed, int) or abs(self.seed) >= 2**63:
            raise ValueError(f"seed={self.seed!r} must be an integer of at most 63 bits")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature={self.temperature!r} must be a finite number of at least 0")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p!r} must be above 0 and at most 1")
        if isinstance(self.stop, str) or not all(isinstance(s, str) and s for s in self.stop):
            raise ValueError(f"stop={self.stop!r} must be a tuple of strings that are not empty")


@dataclass(frozen=True)
class Completion:
    """One sampled response."""

    text: str
    """Decoded without special tokens, cut after the stop string that ended it."""
    token_ids: list[int]
    """The ids as sampled, the eos token included."""
    log_probs: list[float]
    """Log-prob of each id, in nats, under logits / temperature (temperature 0: under the logits)."""
    finish_reason: Literal["stop", "length"]
    """"stop": an eos token or a stop string; "length": cut off at max_tokens."""


class EngineError(RuntimeError):
    """An engine's process or server failed, died or took too long; the message ends with the last lines that it wrote."""


class RolloutEngine(Protocol):
    """What the trainer and the evaluation ask of an engine."""

    on_progress: Callable[[int], object] | None
    """Called with the number of completions that ended since the last call."""

    def generate(self, prompts: Sequence[str], sampling: Sampling) -> list[Completion]:
        """sampling.n completions of each prompt, in order, those of one prompt adjacent."""

    def sync(self, policy: Any) -> None:
        """Take over the weights of `policy`; after this, generate samples from them."""

    def sleep(self) -> None:
        """Give back GPU memory until the next sync, where the engine can and was told to."""

    def close(self) -> None:
        """Give back whatever the engine holds."""

    def __enter__(self) -> Self:
        """Enter a with block."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close on the way out, whatever happened."""


class Engine(ABC):
    """A context manager that closes itself, and has nothing to give back while it sleeps."""

    @abstractmethod
    def close(self) -> None:
        """Give back whatever the engine holds."""

    def sleep(self) -> None:  # noqa: B027 - most have nothing to give back
        """Give back GPU memory until the next sync, where the engine can and was told to."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def encode_prompts(prompts: Sequence[str], sampling: Sampling, model: Any, tokenizer: Any) -> list[list[int]]:
    """Ids of each prompt; ValueError, naming the prompt, when it is empty or leaves no room for max_tokens."""
    prompt_ids = encode(prompts, tokenizer, "prompts")
    for i, ids in enumerate(prompt_ids):
        if not ids:
            raise ValueError(f"prompts[{i}]={prompts[i]!r} has no tokens; a prompt needs at least one")
        what = f"prompts[{i}] ({len(ids)} tokens) with max_tokens={sampling.max_tokens}"
        check_context(model, len(ids) + sampling.max_tokens, what)
    return prompt_ids


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Text of a response's ids, without special tokens."""
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def cut_after_stop(text: str, stops: Sequence[str]) -> str | None:
    """The text up to the end of the first stop string in it; None when there is none."""
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    return text[: min(ends)] if ends else None
