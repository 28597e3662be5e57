"""The non-autoregressive policy of the lecture, for many seeds at once.

A prompt of n tokens becomes one vector: each token's embedding goes through its position's encoding matrix, and the
results are summed. The vector becomes n response positions, one decoding matrix each, and the embedding turns each into
logits over the vocabulary. Response positions are sampled independently of each other, so every probability factorises:

    pi(y | x) = prod_t p_t(y_t | x),        p_t = softmax(logits_t / temperature)

Axes, in this order everywhere: s seed, p prompt, g response to the prompt, t position, v vocabulary entry, d width.
A `Policy` holds one model a seed, stacked; no operation mixes seeds, so gradients of a sum over seeds are each seed's own.

    >>> policy = init_policy(seeds=[0, 1], vocab=5, n=3)
    >>> token_log_probs(policy, torch.tensor([[1, 0, 2], [3, 2, 4]])).shape
    torch.Size([2, 2, 3, 5])
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from einops import einsum, rearrange
from torch import Tensor


@dataclass
class Policy:
    """The stacked parameters: `embedding` (s, v, d), `encode` (s, t, d, d), `decode` (s, d, t, d).

    Position t's encoding matrix of seed s is `encode[s, t]`, its decoding matrix `decode[s, :, t]`: each tensor is laid
    out in the order in which it is contracted, so that no step copies it.
    """

    embedding: Tensor
    encode: Tensor
    decode: Tensor

    def parameters(self) -> list[Tensor]:
        """Return the three tensors, for an optimizer."""
        return [self.embedding, self.encode, self.decode]

    @property
    def num_seeds(self) -> int:
        """Number of models in the stack."""
        return self.embedding.shape[0]

    @property
    def vocab(self) -> int:
        """Number of vocabulary entries."""
        return self.embedding.shape[1]

    @property
    def num_parameters(self) -> int:
        """Number of parameters of one seed's model."""
        return sum(parameter[0].numel() for parameter in self.parameters())

    def frozen(self) -> "Policy":
        """Return a copy that no gradient reaches and no optimizer moves: the old policy, or the reference."""
        return Policy(*(parameter.detach().clone() for parameter in self.parameters()))

    def trainable(self) -> "Policy":
        """Return a copy whose parameters are leaves that require gradients."""
        return Policy(*(parameter.detach().clone().requires_grad_() for parameter in self.parameters()))

    def select(self, seeds: Sequence[int]) -> "Policy":
        """Return the models at these places of the stack (places, not seed values), sharing no memory."""
        return Policy(*(parameter[list(seeds)] for parameter in self.parameters()))


def seed_generator(seed: int, stream: int = 0) -> torch.Generator:
    """Return the random generator of one seed. Streams (0 initial weights, 1 samples) are independent of each other."""
    if seed < 0:
        raise ValueError(f"seed={seed} must be at least 0")
    return torch.Generator().manual_seed(seed * 1_000_003 + stream)


def init_policy(
    seeds: Iterable[int],
    vocab: int = 5,
    n: int = 3,
    dim: int = 10,
    scale: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> Policy:
    """Draw initial models, one a seed: embedding N(0, scale^2), encoding and decoding N(0, 1/dim).

    scale=1.0 is the lecture's. A smaller one gives smaller logits, which go with its square, so a policy closer to uniform
    at the start. A seed's model does not depend on the other seeds. Raises ValueError for an empty list of seeds.
    """
    drawn = []
    for seed in seeds:
        generator = seed_generator(seed)
        drawn.append(
            (
                scale * torch.randn(vocab, dim, generator=generator),
                torch.randn(n, dim, dim, generator=generator) / dim**0.5,
                torch.randn(dim, n, dim, generator=generator) / dim**0.5,
            )
        )
    if not drawn:
        raise ValueError("seeds is empty: give at least one seed")
    return Policy(*(torch.stack(tensors).to(dtype) for tensors in zip(*drawn, strict=True)))


def encode_prompts(policy: Policy, prompts: Tensor) -> Tensor:
    """Turn prompts (p, t) into one vector each, (s, p, d)."""
    embedded = policy.embedding.index_select(1, prompts.flatten()).unflatten(1, prompts.shape)
    return einsum(embedded, policy.encode, "s p t d_in, s t d_in d -> s p d")


def token_logits(policy: Policy, prompts: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the logits of every response position for prompts (p, t), divided by the temperature: (s, p, t, v).

    Raises ValueError for prompts of another shape, or a temperature that is not above 0; IndexError for a token outside the
    vocabulary.
    """
    n = policy.encode.shape[1]
    if prompts.ndim != 2 or prompts.shape[1] != n:
        raise ValueError(f"prompts has shape {tuple(prompts.shape)}; this policy takes (prompts, {n})")
    if not temperature > 0:
        raise ValueError(f"temperature={temperature} must be above 0")
    encoded = encode_prompts(policy, prompts)
    decoded = einsum(encoded, policy.decode, "s p d, s d t d_out -> s p t d_out")
    # In memory v comes before p and t: over a last axis of 5, log_softmax takes four times as long.
    logits = einsum(decoded, policy.embedding, "s p t d_out, s v d_out -> s v p t").movedim(1, -1)
    return logits if temperature == 1.0 else logits / temperature


def token_log_probs(policy: Policy, prompts: Tensor, temperature: float = 1.0) -> Tensor:
    """Return log p_t(v | x) for every position and vocabulary entry, in nats: (s, p, t, v)."""
    return token_logits(policy, prompts, temperature).movedim(-1, 1).log_softmax(dim=1).movedim(1, -1)


def response_log_probs(log_probs: Tensor, responses: Tensor) -> Tensor:
    """Pick the log-prob of each sampled token.

    log_probs: (s, p, t, v) from `token_log_probs`. responses: (s, p, g, t). Returns (s, p, g, t), in nats; its sum over
    the last axis is log pi(y | x), because positions are independent.
    """
    return log_probs.movedim(-1, 0).gather(0, responses.movedim(2, 0)).movedim(0, 2)


def sample_responses(log_probs: Tensor, uniforms: Tensor) -> Tensor:
    """Sample responses by inverting each position's distribution function at given uniform numbers.

    log_probs: (s, p, t, v). uniforms: (s, p, g, t) in [0, 1). Returns token ids, (s, p, g, t). Being a plain function of
    the uniforms, a seed's samples cannot depend on the seeds beside it.
    """
    cumulative = log_probs.detach().exp().cumsum(dim=-1).contiguous()
    # Rounding can leave the last sum below 1; the last entry then takes what lies above it.
    points = rearrange(uniforms.to(cumulative.dtype), "s p g t -> s p t g").contiguous()
    found = torch.searchsorted(cumulative, points, right=True)
    found = rearrange(found.clamp(max=log_probs.shape[-1] - 1), "s p t g -> g s p t").contiguous()
    return rearrange(found, "g s p t -> s p g t")  # in memory the samples lead, as the loss's rows do: no copy a step


def draw_uniforms(seeds: Iterable[int], *shape: int, stream: int = 1) -> Tensor:
    """Draw uniform numbers in [0, 1), (s, *shape), from each seed's own generator."""
    return torch.stack([torch.rand(shape, generator=seed_generator(seed, stream)) for seed in seeds])


def entropy(log_probs: Tensor) -> Tensor:
    """Return the entropy of the whole response in nats, exact: (s, p, t, v) -> (s, p). Uniform: t log v."""
    return -(log_probs.exp() * log_probs).sum(dim=(-1, -2))
