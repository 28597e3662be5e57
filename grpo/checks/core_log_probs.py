"""Core check of log-probs and entropy, and the small model that the checks with a model share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutput

from grpo.checks.judge import WrongAnswer, as_tensor, call, entry, expect, judged

TEMPERATURES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.5, 2.0)


class Bigram(nn.Module):
    """A causal language model whose next-token logits are a row of a table: that of the token before."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table.clone())

    @property
    def device(self) -> torch.device:
        """Where the table lies, as a transformers model says it."""
        return self.table.device

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> CausalLMOutput:
        """Return logits (N, T, vocabulary)."""
        logits: Any = self.table[input_ids]  # transformers asks for a FloatTensor; float64 serves as well
        return CausalLMOutput(logits=logits)


TABLE = torch.tensor(
    [[0.1, 1.2, -0.7, 2.0, 0.4], [1.5, -0.2, 0.9, 0.3, -1.1], [-0.6, 0.8, 0.2, -1.4, 1.9], [2.2, 0.5, -0.3, 1.1, 0.7]],
    dtype=torch.float64,
)
INPUT_IDS = torch.tensor([[0, 1, 2], [3, 0, 1]])
LABELS = torch.tensor([[1, 2, 4], [0, 3, 0]])


@judged
def check_get_response_log_probs(function: Callable[..., Any]) -> str:
    """The log-prob of each label, its gradient, entropies, and logits that overflow a naive softmax."""
    model = Bigram(TABLE)
    result = call(function, model, INPUT_IDS.clone(), LABELS.clone())
    log_probs = entry(result, "log_probs")
    hint = "input_ids and labels are one token apart already: do not shift or drop anything, and do not sum."
    found = as_tensor(log_probs, "log_probs", (2, 3), hint)
    logits = TABLE[INPUT_IDS]
    right = _by_hand(logits)
    expect(found, right, _log_prob_mistakes(logits, right), "log_probs")
    if not log_probs.requires_grad:
        raise WrongAnswer("The values are right, but no gradient reaches the model: no no_grad, no detach, no .item().")
    slope = torch.autograd.grad(log_probs.sum(), model.table)[0]
    expect(slope, _slope_by_hand(), [], "the values are right, the gradient of the model's table")
    _check_entropy(function, logits, right)
    extreme = Bigram(torch.tensor([[0.0, 300.0], [0.0, 0.0]]))
    ids, labels = torch.tensor([[0, 0]]), torch.tensor([[0, 1]])
    found = as_tensor(entry(call(function, extreme, ids, labels), "log_probs"), "log_probs", (1, 2))
    naive = torch.tensor([[-torch.inf, 0.0]]).double(), "log(softmax) underflows at logits 0 and 300: use log_softmax."
    overflow = (torch.tensor([[-torch.inf, torch.nan]]).double(), "exp overflows at a logit of 300: use log_softmax.")
    expect(found, torch.tensor([[-300.0, 0.0]]).double(), [naive, overflow], "log_probs", "logits of 0 and 300")
    return "Right: log-probs of the labels, with their gradient, and the entropy of the whole distribution."


def _by_hand(logits: Tensor) -> Tensor:
    """log of exp(logit of the label) over the sum of exp of all, a position at a time."""
    rows = [[logits[i, t, LABELS[i, t]] - logits[i, t].exp().sum().log() for t in range(3)] for i in range(2)]
    return torch.tensor(rows, dtype=torch.float64)


def _slope_by_hand() -> Tensor:
    """The gradient of log p(y) with respect to the logits is 1 at y, less p everywhere."""
    slope = torch.zeros_like(TABLE)
    for token, label in zip(INPUT_IDS.reshape(-1), LABELS.reshape(-1), strict=True):
        slope[token] -= TABLE[token].exp() / TABLE[token].exp().sum()
        slope[token, label] += 1
    return slope


def _log_prob_mistakes(logits: Tensor, right: Tensor) -> list[tuple[Tensor, str]]:
    def at(values: Tensor, ids: Tensor = LABELS) -> Tensor:
        return values.gather(-1, ids.unsqueeze(-1)).squeeze(-1)

    log_p = logits.log_softmax(dim=-1)
    return [
        (at(logits), "these are logits: take log_softmax over the vocabulary, then the label's."),
        (right.exp(), "these are probabilities: take the log (log_softmax)."),
        (-right, "wrong sign: this is the negative log-likelihood (cross entropy). Log-probs are at most 0."),
        (at(logits.log_softmax(dim=1)), "log_softmax over the wrong axis: over positions. The vocabulary is dim=-1."),
        (at(logits.log_softmax(dim=0)), "log_softmax over the wrong axis: over the batch. The vocabulary is dim=-1."),
        (at(log_p, INPUT_IDS), "logits not shifted: you score input_ids, the token just read. Score the labels."),
        (at(log_p.roll(1, dims=1)), "shifted twice: labels[:, t] is predicted by the logits at t, not at t - 1."),
        (
            at(log_p.roll(-1, dims=1)),
            "shifted the wrong way: labels[:, t] is predicted by the logits at t, not at t + 1.",
        ),
        (log_p.amax(dim=-1), "this is the likeliest token's log-prob: take that of the label, with gather."),
        (right.cumsum(dim=1), "summed along the row: one log-prob a token."),
        (right / right.new_tensor(2.0).log(), "the logarithm has base 2: log-probs are in nats."),
        *(
            (
                at((logits / t).log_softmax(dim=-1)),
                f"the logits are divided by a temperature of {t}: nothing asks for it.",
            )
            for t in TEMPERATURES
        ),
    ]


def _check_entropy(function: Callable[..., Any], logits: Tensor, log_probs: Tensor) -> None:
    setting = "return_token_entropy=True"
    result = call(function, Bigram(TABLE), INPUT_IDS.clone(), LABELS.clone(), True, setting=setting)
    found = as_tensor(entry(result, "token_entropy"), "token_entropy", (2, 3), "One entropy a position: no mean.")
    p = logits.exp() / logits.exp().sum(dim=-1, keepdim=True)
    right = -(p * p.log()).sum(dim=-1)
    by_position = logits.softmax(dim=1)
    mistakes = [
        (-right, "wrong sign: the entropy is *minus* the sum of p log p."),
        (-log_probs, "this is the label's surprise, -log p: the entropy is its mean over all tokens, by p."),
        (-log_probs.exp() * log_probs, "this is the label's term alone: sum over the vocabulary."),
        (-p.log().sum(dim=-1), "the weights p are missing: minus the sum of p log p."),
        (-p.log().mean(dim=-1), "the tokens are weighed alike: weigh log p by p."),
        (right / 5, "mean over the vocabulary: it is the sum of p log p."),
        (right / right.new_tensor(2.0).log(), "the logarithm has base 2: entropies are in nats."),
        (-(by_position * by_position.log()).sum(dim=-1), "softmax over the wrong axis: the vocabulary is dim=-1."),
    ]
    expect(found, right, mistakes, "token_entropy")
    expect(as_tensor(entry(result, "log_probs"), "log_probs", (2, 3)), log_probs, [], "log_probs", setting)
