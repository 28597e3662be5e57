"""What a training run needs: bytes by what they are for, and seconds, both computed before anything is loaded.

Memory: sizes of weights, optimizer, gradients and key-value cache, and what a forward and backward pass of the real code
allocates (grpo/footprint.py). Time: a roofline from a GPU's peak rates and two assumed shares of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import tyro
from transformers import AutoTokenizer

from grpo.advantages import check_choice
from grpo.config import TrainSettings
from grpo.data import FetchError
from grpo.evaluation import QUESTIONS_AT_ONCE
from grpo.footprint import (
    cache_bytes_per_token,
    generation_bytes,
    is_local,
    microbatch_bytes,
    model_shape,
    model_size,
)
from grpo.models import resolve_model
from grpo.prompts import load_prompt
from grpo.tasks import load_problems
from grpo.tokenization import encode

GB = 1e9
BYTES_A_TOKEN = 4  # of English text; 4.4 measured for GSM8K's questions in r1_zero with SmolLM2's tokenizer
GSM8K_QUESTION_BYTES = (991, 235)  # the longest of all 8,792, and their mean
UPDATE_FLOPS, FORWARD_FLOPS = 6, 2  # a parameter and token: forward 2, backward twice that (Kaplan et al. 2020)


@dataclass(frozen=True)
class GPU:
    """Peak rates of a GPU as its maker states them, dense, without sparsity."""

    name: str
    memory: float
    """GB, 10^9 bytes."""
    bandwidth: float
    """GB/s of its memory."""
    bf16: float
    """TFLOP/s of bfloat16 matrix products with float32 sums."""
    fp32: float
    """TFLOP/s in float32."""


# NVIDIA's data sheets of H100 (SXM), H200 (SXM) and A100 (SXM), and its white paper on the Ada architecture.
GPUS = {
    "h200": GPU("H200 141GB", 141, 4800, 989, 67),
    "h100": GPU("H100 80GB", 80, 3350, 989, 67),
    "a100-80gb": GPU("A100 80GB", 80, 2039, 312, 19.5),
    "a100-40gb": GPU("A100 40GB", 40, 1555, 312, 19.5),
    "rtx4090": GPU("RTX 4090 24GB", 24, 1008, 165.2, 82.6),
}


@dataclass(frozen=True)
class PlanSettings:
    """What `grpo plan` can be told."""

    settings: Annotated[TrainSettings, tyro.conf.arg(name="")]
    """The run, by the options of `grpo train`; with --device cpu memory alone is planned."""
    gpu: str = ""
    """One of h200, h100, a100-80gb, a100-40gb, rtx4090; default: a line for each."""
    mfu: float = 0.3
    """Assumed share of the peak FLOP/s that prefill and updates reach."""
    bandwidth_share: float = 0.5
    """Assumed share of the peak bandwidth that decoding reaches."""
    prompt_tokens: int | None = None
    """Longest prompt; default: counted where tokenizer and questions are on this machine, else estimated from bytes."""
    response_tokens: int | None = None
    """Mean response length, for the times alone; default: max_new_tokens, the longest there can be."""


def check_plan(options: PlanSettings) -> None:
    """Raise ValueError for what cannot be planned, before anything is computed."""
    if options.gpu:
        check_choice("gpu", options.gpu, tuple(GPUS))
    for name in ("prompt_tokens", "response_tokens"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"{name}={value!r} must be at least 1")
    if options.response_tokens is not None and options.response_tokens > options.settings.max_new_tokens:
        raise ValueError(
            f"response_tokens={options.response_tokens} must be at most max_new_tokens={options.settings.max_new_tokens}"
        )
    for name in ("mfu", "bandwidth_share"):
        if not 0 < getattr(options, name) <= 1:
            raise ValueError(f"{name}={getattr(options, name)!r} must be above 0 and at most 1")


@dataclass(frozen=True)
class Prompts:
    """How long the prompts of a run are, in tokens."""

    longest: int
    mean: float
    source: str


def prompt_lengths(options: PlanSettings) -> Prompts:
    """Count, estimate or take over the lengths of the rendered prompts."""
    settings = options.settings
    if options.prompt_tokens is not None:
        return Prompts(options.prompt_tokens, options.prompt_tokens, "as given")
    template = load_prompt(settings.prompt)
    try:
        problems = [problem for part in load_problems(settings) for problem in part]
    except (OSError, FetchError):  # GSM8K is not here
        overhead = len(template.render("").encode())
        longest, mean = (math.ceil((overhead + length) / BYTES_A_TOKEN) for length in GSM8K_QUESTION_BYTES)
        return Prompts(longest, mean, f"estimated, {BYTES_A_TOKEN} bytes a token")
    texts = [template.render(problem.question) for problem in problems]
    if is_local(settings.model):
        tokenizer = AutoTokenizer.from_pretrained(resolve_model(settings.model))
        lengths, source = [len(ids) for ids in encode(texts, tokenizer)], "counted"
    else:
        lengths = [math.ceil(len(text.encode()) / BYTES_A_TOKEN) for text in texts]
        source = f"estimated, {BYTES_A_TOKEN} bytes a token"
    return Prompts(max(lengths), sum(lengths) / len(lengths), source)


@dataclass(frozen=True)
class Memory:
    """Bytes on the trainer's device, by what they are for, at the longest prompt with the longest response."""

    weights: int
    """Master weights, float32."""
    moments: int
    """AdamW's two, float32."""
    reference: int
    """A frozen copy of the start, where kl_coef is above 0."""
    gradients: int
    """float32."""
    optimizer_step: int
    """AdamW's temporaries."""
    rows: int
    """Of a microbatch."""
    width: int
    """Its tokens a row."""
    logits: int
    """One rows x width x vocabulary tensor in float32; the log-probs' backward pass holds five at its peak."""
    kept: int
    """What the forward pass keeps for the backward pass, those logits too."""
    microbatch: int
    """The most that a forward and backward pass holds."""
    accumulates: bool
    """Whether gradients are there already while a microbatch is computed."""
    cache_per_token: int
    """Key-value cache of one token of one row."""
    cache: int
    """The hf engine's key-value cache at its fullest; 0 with another engine."""
    generation: int
    """The most that the hf engine holds, that cache too; 0 with another engine."""
    rows_in_flight: int
    """Rows that the hf engine generates at once; all of a rollout batch with another engine."""

    @property
    def fixed(self) -> int:
        """What is there all the time."""
        return self.weights + self.moments + self.reference

    @property
    def update(self) -> int:
        """The most during an update."""
        passes = self.microbatch + (self.gradients if self.accumulates else 0)
        return self.fixed + max(passes, self.gradients + self.optimizer_step)

    @property
    def rollouts(self) -> int:
        """The most while the hf engine samples."""
        return self.fixed + self.generation


def memory(settings: TrainSettings, longest_prompt: int) -> Memory:
    """Add up what a run needs. Raises ValueError when prompt and response do not fit the model's context."""
    shape = model_shape(settings.model)
    size = model_size(shape)
    on_cpu = settings.device == "cpu"
    half = settings.autocast and not on_cpu
    length = longest_prompt + settings.max_new_tokens
    if length > size.context:
        raise ValueError(
            f"a prompt of {longest_prompt} tokens with max_new_tokens={settings.max_new_tokens} exceeds the model's "
            f"context of {size.context}"
        )
    rows = math.ceil(settings.train_batch / settings.microbatches)
    accumulates = settings.microbatches > 1
    kept, peak = microbatch_bytes(
        shape, rows, length - 1, half=half, gradients=accumulates, temperature=settings.temperature
    )
    in_flight, cache, generation = settings.rollout_batch, 0, 0
    if settings.engine == "hf":
        in_flight, cache, generation = _generation(settings, shape, longest_prompt, half)
    return Memory(
        weights=4 * size.parameters,
        moments=8 * size.parameters,
        reference=4 * size.parameters if settings.kl_coef > 0 else 0,
        gradients=4 * size.parameters,
        # On a GPU torch takes the square roots of all second moments at once; on a CPU one parameter after the other.
        optimizer_step=8 * size.largest if on_cpu else 4 * size.parameters,
        rows=rows,
        width=length - 1,
        logits=4 * rows * (length - 1) * size.vocabulary,
        kept=kept,
        microbatch=peak,
        accumulates=accumulates,
        cache_per_token=cache_bytes_per_token(shape, half=half),
        cache=cache,
        generation=generation,
        rows_in_flight=in_flight,
    )


def _generation(settings: TrainSettings, shape: str, prompt: int, half: bool) -> tuple[int, int, int]:
    """Of the larger of training and validation: rows in flight, key-value cache, and the most in all."""
    room = max(1, settings.max_batch_tokens // (prompt + settings.max_new_tokens))
    training = min(settings.rollout_batch, room)
    validation = min(settings.validation_questions, QUESTIONS_AT_ONCE, room)
    batches = {(training, math.ceil(training / settings.group_size)), (validation, validation)}
    largest = [b for b in batches if not any(b != c and b[0] <= c[0] and b[1] <= c[1] for c in batches)]
    sizes = [
        (rows, *generation_bytes(shape, rows, prompts, prompt, settings.max_new_tokens, half=half))
        for rows, prompts in largest
    ]
    return max(sizes, key=lambda size: size[2])


@dataclass(frozen=True)
class Times:
    """Predicted seconds."""

    rollouts: float
    """Sampling of a rollout batch."""
    update: float
    """All updates on it, with the log-probs that they need."""
    run: float
    """All steps and validations."""


def times(options: PlanSettings, prompts: Prompts, need: Memory, gpu: GPU) -> Times:
    """Predict seconds from peak rates and assumed shares of them."""
    settings = options.settings
    size = model_size(model_shape(settings.model))
    flops = (gpu.bf16 if settings.autocast else gpu.fp32) * 1e12 * options.mfu
    response = options.response_tokens or settings.max_new_tokens
    length = prompts.mean + response

    def sampling(rows: int, distinct: int) -> float:
        at_once = min(rows, need.rows_in_flight)
        moved: float = size.in_products * (2 if settings.autocast else 4)
        # The hf engine's cache grows by copying: it is read for attention, read again and written.
        touched = 3 if settings.engine == "hf" else 1
        moved += touched * at_once * need.cache_per_token * (prompts.mean + response / 2)
        step = max(
            moved / (gpu.bandwidth * GB * options.bandwidth_share), FORWARD_FLOPS * size.in_products * at_once / flops
        )
        prefill = FORWARD_FLOPS * size.in_products * distinct * prompts.mean / flops
        return math.ceil(rows / at_once) * response * step + prefill

    rollouts = sampling(settings.rollout_batch, settings.prompts_per_step)
    passes = UPDATE_FLOPS * settings.passes + FORWARD_FLOPS * (settings.needs_old_log_probs + (settings.kl_coef > 0))
    update = passes * size.in_products * settings.rollout_batch * length / flops
    validations = 1 + math.ceil(settings.steps / settings.validate_every)
    run = settings.steps * (rollouts + update)
    run += validations * sampling(settings.validation_questions, settings.validation_questions)
    return Times(rollouts, update, run)
