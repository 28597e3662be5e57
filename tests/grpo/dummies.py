"""A causal language model of 200 float64 parameters and a tokenizer of 8 tokens: small enough to check by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import ClassVar

import torch
from torch import Tensor, nn

torch.set_num_threads(1)

PAD, EOS, BOS, VOCABULARY = 0, 1, 2, 8


class DummyTokenizer:
    """One character a token, except that "ab" is one token: encoding "a" and "b" apart is not encoding "ab".

    "$" is eos, "_" is pad. As in transformers, setting pad_token sets pad_token_id, and special tokens (a bos) are added
    unless they are declined.
    """

    ids: ClassVar[dict[str, int]] = {"_": PAD, "$": EOS, "^": BOS, "a": 3, "b": 4, "c": 5, "d": 6, "ab": 7}

    def __init__(self, pad_token: str | None = "_", eos_token: str | None = "$") -> None:
        self.pad_token, self.eos_token = pad_token, eos_token

    @property
    def pad_token_id(self) -> int | None:
        return None if self.pad_token is None else self.ids[self.pad_token]

    @property
    def eos_token_id(self) -> int | None:
        return None if self.eos_token is None else self.ids[self.eos_token]

    def _encode(self, text: str) -> list[int]:
        pieces, i = [], 0
        while i < len(text):
            piece = "ab" if text.startswith("ab", i) else text[i]
            pieces.append(self.ids[piece])
            i += len(piece)
        return pieces

    def __call__(self, texts: list[str], add_special_tokens: bool = True) -> dict[str, list[list[int]]]:
        return {"input_ids": [[BOS] * add_special_tokens + self._encode(text) for text in texts]}


class DummyModel(nn.Module):
    """Next-token logits from the running mean of the tokens so far: causal, and every token of the context counts."""

    def __init__(
        self,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
        vocabulary: int = VOCABULARY,
        context: int | None = None,
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        width = 6
        self.embedding = nn.Embedding(vocabulary, width, dtype=dtype)
        self.mix = nn.Linear(width, width, dtype=dtype)
        self.head = nn.Linear(width, vocabulary, dtype=dtype)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
        if context is not None:
            self.config = SimpleNamespace(max_position_embeddings=context)
        self.calls: list[Tensor] = []
        self.logits_dtypes: set[torch.dtype] = set()

    def forward(self, input_ids: Tensor) -> SimpleNamespace:
        self.calls.append(input_ids)
        x = self.embedding(input_ids)
        steps = torch.arange(1, x.shape[1] + 1).unsqueeze(-1)
        logits = self.head(torch.tanh(self.mix(x.cumsum(dim=1) / steps) + x))
        self.logits_dtypes.add(logits.dtype)
        return SimpleNamespace(logits=logits)


class ConstantModel(nn.Module):
    """The same next-token logits after every context; zeros: every token has log-prob -log(VOCABULARY)."""

    def __init__(self, logits: Sequence[float] = (0.0,) * VOCABULARY) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits, dtype=torch.float64))

    def forward(self, input_ids: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.logits.expand(*input_ids.shape, -1))


def reward_of_truth(response: str, ground_truth: str) -> dict[str, float]:
    """The ground truth is the reward, so that a test can choose each rollout's."""
    reward = float(ground_truth)
    return {"reward": reward, "format_reward": float(len(response) > 1), "answer_reward": float(reward == 1)}


def counted(reward_fn: Callable[[str, str], dict[str, float]]) -> Callable[[str, str], dict[str, float]]:
    """The reward function, with the list of its calls in `.calls`."""

    def wrapper(response: str, ground_truth: str) -> dict[str, float]:
        wrapper.calls.append((response, ground_truth))  # type: ignore[attr-defined]
        return reward_fn(response, ground_truth)

    wrapper.calls = []  # type: ignore[attr-defined]
    return wrapper


def row_log_probs(model: nn.Module, prompt: Sequence[int], response: Sequence[int], temperature: float = 1.0) -> Tensor:
    """log pi of each response token, one row alone and one token at a time: no padding, no mask, no gather."""
    row = [*prompt, *response]
    parts = []
    for t in range(len(prompt), len(row)):
        logits = model(torch.tensor([row[:t]])).logits[0, -1] / temperature
        parts.append(logits[row[t]] - logits.exp().sum().log())
    return torch.stack(parts) if parts else torch.zeros(0, dtype=torch.float64)


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """All numbers of some tensors in one vector."""
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of what is expected."""
    return ((actual - expected).norm() / expected.norm().clamp(min=1e-30)).item()


def sgd_gradient(model: nn.Module, step: Callable[[torch.optim.Optimizer], object]) -> tuple[Tensor, object]:
    """The gradient that `step(optimizer)` takes, seen from outside: what SGD at rate 1 subtracts. Undone afterwards."""
    before = [p.detach().clone() for p in model.parameters()]
    result = step(torch.optim.SGD(model.parameters(), lr=1.0))
    gradient = flat(before) - flat(list(model.parameters()))
    with torch.no_grad():
        for p, value in zip(model.parameters(), before, strict=True):
            p.copy_(value)
    assert all(p.grad is None for p in model.parameters())
    return gradient, result
