"""The `hf` engine: sampling with a transformers model, in the trainer's process, nothing else to install.

Three things make it faster than calling `generate` on every row, without a custom kernel: a prompt is encoded once for
its whole group, rows that have ended leave the batch, and a stop string is only looked for where a token could end it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from grpo.log_probs import autocast
from grpo.models import eos_token_ids
from grpo.rollouts.base import Completion, Engine, Sampling, cut_after_stop, decode, encode_prompts
from grpo.tokenization import ensure_pad_token


def filter_top_p(logits: Tensor, top_p: float) -> Tensor:
    """Set to -inf every logit outside the smallest set of tokens whose probabilities sum to top_p. logits: (B, V)."""
    if top_p >= 1:
        return logits
    ordered, order = logits.sort(dim=-1, descending=True)
    before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
    outside = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, before >= top_p)
    return logits.masked_fill(outside, -torch.inf)


def sample_tokens(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw a token a row: (ids, log-probs under logits / temperature), each (B,). logits: (B, V)."""
    logits = logits.float()
    if sampling.temperature == 0:
        ids = logits.argmax(dim=-1)
    else:
        logits = logits / sampling.temperature
        probabilities = filter_top_p(logits, sampling.top_p).softmax(dim=-1)
        ids = torch.multinomial(probabilities, 1, generator=generator).squeeze(-1)
    log_probs = logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(dim=-1)
    return ids, log_probs


class HFEngine(Engine):
    """Samples from a transformers model. Usable as a context manager; closing it does nothing.

    model: the policy itself; it is shared, not copied, so sync(model) has nothing to move.
    max_batch_tokens: bound on rows x (longest prompt + max_tokens) of what is generated at once.
    autocast_dtype: bfloat16 for float32 master weights on a GPU.
    on_progress: called with the number of completions that ended since the last call.

    The same prompts, settings, seed and max_batch_tokens give the same completions.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        max_batch_tokens: int = 65_536,
        autocast_dtype: torch.dtype | None = None,
        on_progress: Callable[[int], object] | None = None,
    ) -> None:
        if max_batch_tokens < 1:
            raise ValueError(f"max_batch_tokens={max_batch_tokens!r} must be at least 1")
        self.model, self.tokenizer = model, tokenizer
        self.max_batch_tokens, self.autocast_dtype, self.on_progress = max_batch_tokens, autocast_dtype, on_progress
        self.pad_token_id = ensure_pad_token(tokenizer)
        self.eos_token_ids = eos_token_ids(model, tokenizer)
        self._enders: dict[str, Tensor | None] = {}

    def close(self) -> None:
        """Nothing to give back: the model is the caller's."""

    def sync(self, policy: Any) -> None:
        """Take over the weights of `policy`: nothing to do for the shared model, a copy for any other."""
        if policy is not self.model:
            self.model.load_state_dict(policy.state_dict())

    @torch.inference_mode()
    def generate(self, prompts: Sequence[str], sampling: Sampling) -> list[Completion]:
        """sampling.n completions of each prompt, in order, those of one prompt adjacent.

        Raises ValueError, naming the prompt, when one is empty or does not fit the context together with max_tokens.
        """
        prompt_ids = encode_prompts(prompts, sampling, self.model, self.tokenizer)
        device = self.model.device
        generator = torch.Generator(device=device).manual_seed(sampling.seed)
        completions: dict[int, Completion] = {}
        was_training = self.model.training
        self.model.eval()
        try:
            with autocast(device.type, self.autocast_dtype):
                for rows in self._batches(prompt_ids, sampling):
                    completions |= self._generate_batch(rows, prompt_ids, sampling, generator)
        finally:
            self.model.train(was_training)
        return [completions[i] for i in range(len(completions))]

    def _batches(self, prompt_ids: list[list[int]], sampling: Sampling) -> Iterator[list[int]]:
        """Completion numbers (prompt * n + sample) of each batch, prompts of like length together."""
        order = sorted(range(len(prompt_ids)), key=lambda i: len(prompt_ids[i]))
        batch: list[int] = []
        for i in order:
            room = max(1, self.max_batch_tokens // (len(prompt_ids[i]) + sampling.max_tokens))
            for number in range(i * sampling.n, (i + 1) * sampling.n):
                if len(batch) >= room:
                    yield batch
                    batch = []
                batch.append(number)
        if batch:
            yield batch

    def _prefill(self, prompt_ids: list[list[int]], row_prompts: list[int]) -> tuple[Tensor, DynamicCache, Tensor]:
        """Encode each distinct prompt once; returns logits, cache and attention mask, repeated for each row."""
        distinct = sorted(set(row_prompts))
        device, width = self.model.device, max(len(prompt_ids[i]) for i in distinct)
        padded = [[self.pad_token_id] * (width - len(prompt_ids[i])) + prompt_ids[i] for i in distinct]
        ids = torch.tensor(padded, device=device)
        lengths = torch.tensor([len(prompt_ids[i]) for i in distinct], device=device)
        mask = (torch.arange(width, device=device) >= width - lengths.unsqueeze(1)).long()
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        out = self.model(
            ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            past_key_values=DynamicCache(),
        )
        place = {i: at for at, i in enumerate(distinct)}
        repeat = torch.tensor([place[i] for i in row_prompts], device=device)
        out.past_key_values.batch_select_indices(repeat)
        return out.logits[:, -1][repeat], out.past_key_values, mask[repeat]

    def _generate_batch(
        self, rows: list[int], prompt_ids: list[list[int]], sampling: Sampling, generator: torch.Generator
    ) -> dict[int, Completion]:
        logits, cache, mask = self._prefill(prompt_ids, [row // sampling.n for row in rows])
        ids: dict[int, list[int]] = {row: [] for row in rows}
        log_probs: dict[int, list[float]] = {row: [] for row in rows}
        done: dict[int, Completion] = {}
        live = list(rows)  # the rows of the model's batch; some have ended and wait to be dropped
        enders = [self._stop_enders(stop) for stop in sampling.stop]
        eos = torch.tensor(self.eos_token_ids, device=logits.device)
        for step in range(sampling.max_tokens):
            tokens, token_log_probs = sample_tokens(logits, sampling, generator)
            may_end = torch.isin(tokens, eos)
            for ender in enders:
                may_end |= True if ender is None else ender.to(tokens.device)[tokens]
            ended_before = len(done)
            columns = zip(live, tokens.tolist(), token_log_probs.tolist(), may_end.tolist(), strict=True)
            for row, token, log_prob, check in columns:
                if row in done:
                    continue
                ids[row].append(token)
                log_probs[row].append(log_prob)
                text = self._ended_text(ids[row], sampling.stop) if check else None
                if text is not None:
                    done[row] = Completion(text, ids[row], log_probs[row], "stop")
            if self.on_progress and len(done) > ended_before:
                self.on_progress(len(done) - ended_before)
            if len(done) == len(rows) or step == sampling.max_tokens - 1:
                break
            if len(rows) - len(done) <= 0.8 * len(live):
                keep = torch.tensor([i for i, row in enumerate(live) if row not in done], device=logits.device)
                live = [row for row in live if row not in done]
                cache.batch_select_indices(keep)
                mask, tokens = mask[keep], tokens[keep]
            mask = torch.cat([mask, mask.new_ones(len(live), 1)], dim=1)
            positions = mask.sum(dim=1, keepdim=True) - 1
            out = self.model(
                tokens.unsqueeze(1), attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
            )
            logits, cache = out.logits[:, -1], out.past_key_values
        cut_off = [row for row in rows if row not in done]
        for row in cut_off:
            done[row] = Completion(decode(self.tokenizer, ids[row]), ids[row], log_probs[row], "length")
        if self.on_progress and cut_off:
            self.on_progress(len(cut_off))
        return done

    def _ended_text(self, ids: list[int], stops: tuple[str, ...]) -> str | None:
        """The text of a completion that has ended at its last token, else None."""
        text = decode(self.tokenizer, ids)
        cut = cut_after_stop(text, stops)
        return text if cut is None and ids[-1] in self.eos_token_ids else cut

    def _stop_enders(self, stop: str) -> Tensor | None:
        """Which tokens of the vocabulary hold the stop string's last character, (V,); None when any token might."""
        if not stop[-1].isascii():  # one character may be spread over several byte tokens
            return None
        last = stop[-1]
        if last not in self._enders:
            rows = self.model.get_output_embeddings().weight.shape[0]
            pieces = self.tokenizer.batch_decode([[i] for i in range(min(rows, len(self.tokenizer)))])
            holds = [last in piece for piece in pieces]
            self._enders[last] = torch.tensor(holds + [False] * (rows - len(holds)))
        return self._enders[last]
