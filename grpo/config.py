"""Settings of a training run, and the presets that runs start from.

One dataclass, a docstring under each field; the command line is made from it: `grpo train --preset tiny --seed 3`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from grpo.advantages import ESTIMATORS, check_advantage_settings, check_choice
from grpo.own import is_own, load_own, own_file
from grpo.rollouts import EngineOptions, Sampling
from grpo.update import UpdateSettings

SCHEDULES = ("constant", "linear", "cosine")
ENGINES = ("hf", "vllm", "vllm-server")
DATASETS = ("words", "gsm8k")


@dataclass(frozen=True)
class TrainSettings:
    """Everything that `grpo train` can be told."""

    model: str = "tiny"
    """The policy to start from: tiny, smollm2, olmo2-1b, a folder, or a hub id."""
    data: str = "words"
    """Task: words (the embedded word problems), gsm8k, or a .jsonl file in GSM8K's format."""
    data_dir: str | None = None
    """Folder with GSM8K's train.jsonl and test.jsonl; default: $GRPO_DATA_DIR, else data/gsm8k."""
    levels: tuple[int, ...] = (1, 2, 3)
    """Difficulty levels of the embedded word problems."""
    prompt: str = "tiny_r1_zero"
    """Prompt template: a name in prompts/, or a .prompt file."""
    train_questions: int = 2048
    """Training questions; they are gone through in a new random order each time round."""
    validation_questions: int = 256
    """Held-out questions, the same at every validation."""
    seed: int = 1
    """Of the order of the questions and of every sample. Training and validation questions do not depend on it."""

    steps: int = 50
    """Rollout steps: sample a rollout batch, then update on it."""
    rollout_batch: int = 256
    """Responses sampled a rollout step: prompts x group_size."""
    train_batch: int = 256
    """Responses an update; a smaller one than rollout_batch makes all but the first update off-policy."""
    group_size: int = 8
    """Responses a prompt."""
    passes: int = 1
    """Times that each rollout batch is trained on."""
    microbatches: int = 1
    """Forward and backward passes an update; changes memory, not the result."""

    estimator: Literal["reinforce", "grpo", "grpo_constant", "dr_grpo", "rft", "maxrl", "rloo"] = "grpo"
    """Baseline, normalizer and loss normalization by name (the table in grpo/advantages.py)."""
    baseline: str | None = None
    """In place of the estimator's own: none, mean, leave_one_out, or FILE.py:FUNCTION (grpo/own.py)."""
    advantage_normalizer: str | None = None
    """In place of the estimator's own: none, std, mean, or FILE.py:FUNCTION, whose result is the divisor as it stands."""
    loss_normalization: Literal["sequence", "constant", "token"] | None = None
    """In place of the estimator's own."""
    advantage_eps: float = 1e-6
    """Added to the standard deviation or mean that divides."""
    normalization_constant: float | None = None
    """Divisor of loss normalization "constant"; default: train_batch x max_new_tokens."""
    importance_reweighting: Literal["none", "noclip", "grpo", "gspo", "cispo"] = "none"
    """How stale samples are reweighted (grpo/losses.py)."""
    cliprange: float | None = None
    """Clip range of the importance ratio, for grpo, gspo and cispo."""
    cliprange_upper: float | None = None
    """Its upper side, where that differs (clip-higher)."""
    kl_coef: float = 0.0
    """Weight of KL(policy || the model before training), per token, in the loss."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How the KL is estimated; as a loss only k2 has the gradient of KL(policy || reference)."""

    learning_rate: float = 3e-4
    """Peak learning rate of AdamW."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """From the peak, after the warm-up: constant, or down to 0 at the last update."""
    warmup_updates: int = 0
    """Updates over which the learning rate rises from 0."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of the two moments."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay."""
    max_grad_norm: float | None = 1.0
    """Gradients are scaled down to this norm; none: never."""

    temperature: float = 1.0
    """Sampling temperature; it divides the logits of the trainer too."""
    top_p: float = 1.0
    """Nucleus sampling; below 1 the gradient is that of another distribution than the one sampled."""
    max_new_tokens: int = 80
    """Longest response, in tokens."""
    engine: Literal["hf", "vllm", "vllm-server"] = "hf"
    """Rollout engine: hf (transformers, in this process), vllm (a process of its own), or vllm-server (over HTTP)."""
    engine_url: str = ""
    """vllm-server: attach to the server at this URL, like http://host:8000; default: start one here, and end it."""
    engine_port: int | None = None
    """vllm-server: port of the server that is started; None: a free one."""
    engine_folder: str = ""
    """vllm-server: folder that trainer and server at engine_url both see, for weights by file between two machines."""
    engine_gpus: tuple[int, ...] = ()
    """GPUs of the engine, by number, like 1 or 1 2; default: the trainer's."""
    engine_memory: float = 0.4
    """Share of each of its GPUs' memory that the engine takes; the trainer needs the rest where they share one."""
    engine_sleep: bool = False
    """The engine frees that memory during each update, for a trainer on the same GPU."""
    engine_time_limit: float = 1800.0
    """Seconds that an answer of a vLLM engine may take; a server is asked three times."""
    tensor_parallel_size: int = 1
    """GPUs that share one copy of the policy in the engine."""
    data_parallel_size: int = 1
    """vllm-server: copies of the policy, each on tensor_parallel_size GPUs."""
    engine_weight_cap: float | None = None
    """Weight each token's loss by min(pi / pi_engine, this): for an engine whose log-probs differ; none: no weights."""
    max_batch_tokens: int = 65_536
    """Bound on rows x (prompt + max_new_tokens) that the hf engine generates at once; changes the samples."""

    validate_every: int = 10
    """Rollout steps between validations; there is one before the first step and one after the last, too."""
    checkpoint_every: int = 25
    """Rollout steps between checkpoints; there is one after the last step, too."""
    keep_checkpoints: int = 1
    """How many of the newest checkpoints to keep."""
    log_rollouts: int = 8
    """Rollouts of each step that are written to rollouts.jsonl."""

    device: str = "auto"
    """auto (the first GPU, else the CPU), cpu, cuda, cuda:1, ..."""
    autocast: bool = True
    """Compute in bfloat16 over float32 master weights on a GPU; a CPU computes in float32 always."""
    threads: int | None = None
    """CPU threads for torch, None for torch's own choice. A model as small as tiny gains nothing from a second one."""
    tracker: str = ""
    """Also log to a module with init, log and finish: wandb or trackio."""
    run_dir: str = ""
    """Where the run is written; default: runs/<model>-<data>-<estimator>-seed<seed>."""

    def __post_init__(self) -> None:
        for name in _AT_LEAST_ONE:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} must be an integer of at least 1")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads={self.threads!r} must be at least 1, or None for torch's own choice")
        for name in ("warmup_updates", "log_rollouts", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)!r} must be at least 0")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or abs(self.seed) >= _SEEDS:
            raise ValueError(f"seed={self.seed!r} must be an integer between -{_SEEDS} and {_SEEDS}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={self.betas!r} must be two numbers from 0 to below 1")
        for name, multiple_of in (("train_batch", "group_size"), ("rollout_batch", "train_batch")):
            value, unit = getattr(self, name), getattr(self, multiple_of)
            if value % unit:
                raise ValueError(f"{name}={value} must be a multiple of {multiple_of}={unit}")
        if self.prompts_per_step > self.train_questions:
            raise ValueError(
                f"train_questions={self.train_questions} is fewer than the {self.prompts_per_step} prompts of a rollout "
                f"step (rollout_batch={self.rollout_batch} / group_size={self.group_size})"
            )
        check_choice("estimator", self.estimator, tuple(ESTIMATORS))
        check_choice("schedule", self.schedule, SCHEDULES)
        check_choice("engine", self.engine, ENGINES)
        if not self.data.endswith(".jsonl"):
            check_choice("data", self.data, (*DATASETS, "a .jsonl file"))
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ValueError(f"learning_rate={self.learning_rate!r} must be a finite number above 0")
        if self.cliprange_upper is not None and self.cliprange is None:
            raise ValueError(f"cliprange_upper={self.cliprange_upper} without cliprange; give both sides")
        cap = self.engine_weight_cap
        if cap is not None and not (math.isfinite(cap) and cap > 0):
            raise ValueError(f"engine_weight_cap={cap!r} must be a finite number above 0")
        self.engine_options().check(self.engine)
        self.sampling(0)
        self.update_settings()
        check_advantage_settings(self.group_size, **self.advantage_settings())

    @property
    def prompts_per_step(self) -> int:
        """Prompts of a rollout step."""
        return self.rollout_batch // self.group_size

    @property
    def updates_per_step(self) -> int:
        """Optimizer steps of a rollout step."""
        return self.passes * (self.rollout_batch // self.train_batch)

    @property
    def needs_old_log_probs(self) -> bool:
        """Whether an update reweights by them, comes after another one, or rests on another program's samples."""
        reweights = self.importance_reweighting != "none" or self.engine_weight_cap is not None
        return reweights or self.updates_per_step > 1 or self.engine != "hf"

    def _estimator_part(self, name: str) -> Any:
        own = getattr(self, name)
        return ESTIMATORS[self.estimator][name] if own is None else own

    def own_files(self) -> set[Path]:
        """Files with functions of one's own that the settings name."""
        return {own_file(str(value)) for value in (self.baseline, self.advantage_normalizer) if is_own(value)}

    def advantage_settings(self) -> dict[str, Any]:
        """Keyword arguments of compute_group_normalized_rewards; functions of one's own are loaded."""
        parts = {name: self._estimator_part(name) for name in ("baseline", "advantage_normalizer")}
        parts = {name: load_own(name, value) if is_own(value) else value for name, value in parts.items()}
        return parts | {"advantage_eps": self.advantage_eps}

    def update_settings(self, autocast_dtype: Any = None) -> UpdateSettings:
        """How a train batch becomes one update."""
        constant = self.normalization_constant
        upper = self.cliprange_upper
        return UpdateSettings(
            gradient_accumulation_steps=self.microbatches,
            max_grad_norm=self.max_grad_norm,
            importance_reweighting_method=self.importance_reweighting,
            cliprange=self.cliprange if upper is None or self.cliprange is None else (self.cliprange, upper),
            loss_normalization=self._estimator_part("loss_normalization"),
            normalization_constant=float(self.train_batch * self.max_new_tokens) if constant is None else constant,
            kl_coef=self.kl_coef,
            kl_estimator=self.kl_estimator,
            temperature=self.temperature,
            autocast_dtype=autocast_dtype,
        )

    def engine_options(self) -> EngineOptions:
        """How a vLLM engine runs."""
        return EngineOptions(**{field.name: getattr(self, field.name) for field in fields(EngineOptions)})

    def sampling(self, seed: int, stop: tuple[str, ...] = (), n: int | None = None) -> Sampling:
        """How responses are sampled, at the training temperature."""
        n = self.group_size if n is None else n
        return Sampling(n, self.temperature, self.top_p, self.max_new_tokens, stop, seed)

    def learning_rate_at(self, update: int) -> float:
        """Learning rate of the update of that number, counted from 0."""
        total = max(1, self.steps * self.updates_per_step - self.warmup_updates)
        if update < self.warmup_updates:
            return self.learning_rate * (update + 1) / self.warmup_updates
        done = min(1.0, (update - self.warmup_updates) / total)
        scale = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[self.schedule]
        return self.learning_rate * scale

    def folder(self) -> Path:
        """Where the run is written."""
        name = f"{Path(self.model).name}-{Path(self.data).stem}-{self.estimator}-seed{self.seed}"
        return Path(self.run_dir) if self.run_dir else Path("runs") / name

    def to_json(self) -> dict[str, Any]:
        """The settings as JSON holds them (tuples become lists)."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}


_AT_LEAST_ONE = (
    "train_questions",
    "validation_questions",
    "steps",
    "rollout_batch",
    "train_batch",
    "group_size",
    "passes",
    "microbatches",
    "validate_every",
    "checkpoint_every",
    "keep_checkpoints",
    "max_new_tokens",
    "max_batch_tokens",
)
_SEEDS = 2**32  # what torch's generators are seeded with, a product of this and the step, is below 2**63

TINY = TrainSettings(threads=1)

PRESETS: dict[str, TrainSettings] = {
    # The embedded model on the embedded word problems: about two minutes on two cores.
    "tiny": TINY,
    # A real pretrained model on a CPU. It is weak at arithmetic: one-step problems are where it starts above 0.
    "smollm2": replace(
        TINY,
        model="smollm2",
        threads=None,
        levels=(1,),
        prompt="r1_zero_three_shot_gsm8k",
        steps=20,
        rollout_batch=64,
        train_batch=64,
        microbatches=8,
        learning_rate=1e-5,
        max_new_tokens=128,
        validation_questions=64,
        max_batch_tokens=32_768,
        checkpoint_every=5,
    ),
    # The assignment's run: about 35% validation accuracy after 100 steps from about 0, as its authors report.
    "olmo2-1b": TrainSettings(
        model="olmo2-1b",
        data="gsm8k",
        prompt="r1_zero",
        train_questions=6400,
        validation_questions=1024,
        seed=42,
        steps=200,
        microbatches=32,
        learning_rate=1e-5,
        max_new_tokens=512,
        max_batch_tokens=262_144,
    ),
}


def preset(name: str) -> TrainSettings:
    """The preset of that name; ValueError, with the known ones, for any other."""
    check_choice("preset", name, tuple(PRESETS))
    return PRESETS[name]
