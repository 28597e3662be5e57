"""Checks of notebook 02: the log-prob of a response, a sampler to mend, a policy to freeze.

Each check takes the learner's function, prints one message and returns nothing. It raises for no answer, however wrong.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from toyrl.exact import all_response_log_probs, all_responses
from toyrl.policy import Policy, init_policy, response_log_probs, token_log_probs
from toyrl.sorting import DEFAULT_PROMPTS

SAMPLES = 40_000
"""Responses drawn by `check_sampler`; a frequency is then off by less than 0.01 in practice."""

TOLERANCE = 0.015
"""The difference of a frequency from its probability that `check_sampler` lets pass: six standard errors."""


def check_response_log_prob(response_log_prob: Callable[[Tensor, Tensor], Any]) -> None:
    """Print whether a function gives log pi(y | x): log-probs (p, t, v), responses (p, g, t) -> (p, g)."""
    print(_judge(_response_log_prob, response_log_prob))


def check_sampler(sample: Callable[[Tensor, Tensor], Any]) -> None:
    """Print whether a function samples from the policy: probabilities (t, v), uniforms (g, t) -> tokens (g, t)."""
    print(_judge(_sampler, sample))


def check_freeze(freeze: Callable[[Policy], Any]) -> None:
    """Print whether a function returns a copy of a `Policy` that no gradient reaches and no optimizer step moves."""
    print(_judge(_freeze, freeze))


def _judge(judge: Callable[[Any], str], answer: Any) -> str:
    """Return the judge's message; a fault in the learner's function becomes a message too."""
    if not callable(answer):
        return f"Give the check the function itself, without calling it; it got {type(answer).__name__}."
    try:
        return judge(answer)
    except Exception as error:  # the learner's function may raise anything
        return f"Your function stopped with {type(error).__name__}: {error}"


def _example() -> tuple[Tensor, Tensor]:
    """Return log-probs (p, t, v) with gradient, and responses (p, g, t); no two of p, g, t, v are equal."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64).requires_grad_()
    return logits.log_softmax(dim=-1), torch.randint(5, (2, 4, 3), generator=generator)


def _response_log_prob(response_log_prob: Callable[[Tensor, Tensor], Any]) -> str:
    log_probs, responses = _example()
    got = response_log_prob(log_probs, responses)
    if got is None or got is ...:
        return "Not done yet: response_log_prob returns nothing. Return a tensor of shape (p, g)."
    if not isinstance(got, Tensor):
        return f"You return a {type(got).__name__}; return a tensor of shape (p, g)."
    tokens = response_log_probs(log_probs.unsqueeze(0), responses.unsqueeze(0)).squeeze(0)  # (p, g, t)
    right = tokens.sum(dim=-1)

    def is_(wrong: Tensor) -> bool:
        return got.shape == wrong.shape and torch.allclose(got.double(), wrong)

    if is_(tokens):
        return "One number a token: right so far. The positions are independent; what is the log of their product?"
    if is_(right.exp()):
        return "That is the probability of the response. Its logarithm is asked for: leave the exp out."
    if is_(tokens.mean(dim=-1)):
        return "That is the mean over positions. The log of a product is the sum of the logs."
    if is_(tokens.prod(dim=-1)):
        return "You multiplied the log-probs. Probabilities multiply; their logs add."
    if is_(tokens.exp().sum(dim=-1).log()) or is_(tokens.exp().sum(dim=-1)):
        return "You added the probabilities of the tokens. Independent probabilities multiply, so their logs add."
    if got.shape != right.shape:
        return (
            f"For log_probs of shape (p, t, v) = {tuple(log_probs.shape)} and responses (p, g, t) = "
            f"{tuple(responses.shape)} you return shape {tuple(got.shape)}; expected (p, g) = {tuple(right.shape)}."
        )
    if not is_(right):
        where = (got.double() - right).abs().argmax()
        p, g = divmod(int(where), right.shape[1])
        return (
            f"Prompt {p}, response {responses[p, g].tolist()}: you return {got[p, g]:.3f}, right is {right[p, g]:.3f}. "
            "Is each token looked up at its own prompt and its own position?"
        )
    if not got.requires_grad:
        return (
            "The numbers are right, but the gradient is cut off: training needs it (no detach, item or no_grad here)."
        )
    return "Right: each token's log-prob, looked up at its prompt and position, summed over positions."


def _sampler(sample: Callable[[Tensor, Tensor], Any]) -> str:
    probs = torch.tensor([[0.5, 0.1, 0.3, 0.1], [0.2, 0.3, 0.1, 0.4], [0.1, 0.6, 0.1, 0.2]])
    t, v = probs.shape
    uniforms = torch.rand(SAMPLES, t, generator=torch.Generator().manual_seed(0))
    got = sample(probs.clone(), uniforms.clone())
    if got is None or got is ...:
        return "Not done yet: sample returns nothing. Return tokens of shape (g, t)."
    if not isinstance(got, Tensor) or tuple(got.shape) != (SAMPLES, t):
        shape = tuple(got.shape) if isinstance(got, Tensor) else type(got).__name__
        return f"For uniforms of shape (g, t) = {(SAMPLES, t)} you return {shape}; expected tokens of that shape."
    got = got.long()
    if got.min() < 0 or got.max() >= v:
        return f"Tokens go from {got.min()} to {got.max()}; the vocabulary has 0 to {v - 1}."
    frequency = torch.stack([(got == token).float().mean(dim=0) for token in range(v)], dim=1)  # (t, v)
    off = (frequency - probs).abs()
    if off.max() > TOLERANCE:
        position, token = divmod(int(off.argmax()), v)
        return (
            f"Position {position} says {token} in {100 * frequency[position, token]:.0f}% of the samples; "
            f"its probability is {100 * probs[position, token]:.0f}%."
        )
    responses = all_responses(t, v)
    expected = all_response_log_probs(probs.log()).exp()
    code = (got * v ** torch.arange(t - 1, -1, -1)).sum(dim=1)
    joint = torch.bincount(code, minlength=len(responses)) / SAMPLES
    worst = int((joint - expected).abs().argmax())
    if (joint - expected).abs().max() > TOLERANCE:
        return (
            "Not right yet. Each position says each token as often as it should, but the response "
            f"{responses[worst].tolist()} comes in {100 * joint[worst]:.1f}% of the samples; the policy gives it "
            f"{100 * expected[worst]:.1f}%. What do the positions share that they should not?"
        )
    return _sampler_edges(sample)


def _sampler_edges(sample: Callable[[Tensor, Tensor], Any]) -> str:
    """Judge a sampler, right on average, at the ends of [0, 1)."""
    short = torch.tensor([[0.25, 0.25, 0.25, 0.2499999]])  # its sums end below 1, as rounding can have it
    top = int(sample(short, torch.tensor([[0.99999994]])).max())
    if top > 3:
        return (
            "Almost. Rounding can leave the last cumulative sum below 1; for the uniform number 0.99999994 above it "
            f"you return token {top} of a vocabulary 0 to 3. Limit the result (clamp)."
        )
    if int(sample(torch.tensor([[0.0, 0.5, 0.25, 0.25]]), torch.zeros(1, 1)).min()) == 0:
        return "Almost. The uniform number can be exactly 0, and then you return token 0 though its probability is 0."
    return "Right: every response comes as often as the policy says, and rounding leads to no token that is not there."


def _freeze(freeze: Callable[[Policy], Any]) -> str:
    policy = init_policy([0]).trainable()
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    old = freeze(policy)
    if old is None or old is ...:
        return "Not done yet: freeze returns nothing. Return a Policy."
    if old is policy:
        return "That is the same policy under another name: when the optimizer moves one, the other moves along."
    if not isinstance(old, Policy):
        return f"You return a {type(old).__name__}; return Policy(embedding, encode, decode)."
    copies = old.parameters()
    if any(a.shape != b.shape or not torch.equal(a, b) for a, b in zip(copies, before, strict=True)):
        return (
            "The copy differs from the policy. Embedding, encode and decode should have the same values, in this order."
        )
    if not all(parameter.requires_grad for parameter in policy.parameters()):
        return "The policy itself does not take gradients any more: you froze the one that should learn."
    if any(copy.grad_fn is not None for copy in copies):
        log_ratio = token_log_probs(policy, DEFAULT_PROMPTS) - token_log_probs(old, DEFAULT_PROMPTS)
        gradient = torch.autograd.grad(log_ratio.exp()[..., 0].sum(), policy.parameters())
        largest = max(part.abs().max().item() for part in gradient)
        return (
            "A gradient flows through the copy back into the policy: the largest entry of the gradient of pi / pi_old "
            f"is {largest:.4f}, for numerator and denominator move together."
        )
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.sub_(0.1)  # in place, as an optimizer does it
    if any(not torch.equal(a, b) for a, b in zip(copies, before, strict=True)):
        return (
            "No gradient flows, but after one optimizer step the copy had moved along: it shares the policy's memory."
        )
    if any(copy.requires_grad for copy in copies):
        return (
            "The copy stands still by itself, but it still asks for gradients: an optimizer that got it would move it."
        )
    return "Right: the same values, no gradient, and memory of its own."
