"""The training loop: sample, grade, update; validate and save now and then.

    for each rollout step:
        prompts, G responses each, from the current policy          (rollouts)
        a reward for each response, an advantage within its group   (rewards, advantages)
        log-probs under the policy that sampled, where needed       (log_probs)
        one update for each train batch, passes times over          (update)

Everything random is a function of (seed, step): the order of the questions, the samples, the order of train batches. So a
run that was stopped and resumed gives the same metrics, bit for bit on the CPU, as one that was not.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import math
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from grpo.advantages import compute_group_normalized_rewards
from grpo.checkpoints import check_checkpoint, restore_checkpoint, save_checkpoint, seed_everything
from grpo.config import TrainSettings, preset
from grpo.data import Problem
from grpo.evaluation import accuracy_by_level, check_prompts_fit, evaluate, summarize
from grpo.footprint import matmul_parameters
from grpo.log_probs import log_probs_in_batches, response_entropies
from grpo.mismatch import engine_log_probs, measure_mismatch, truncated_importance_weights
from grpo.models import load_model, resolve_device
from grpo.plots import plot_run
from grpo.prompts import Prompt, load_prompt
from grpo.rewards import RewardFn, compute_rollout_rewards
from grpo.rollouts import Completion, EngineError, check_engine, open_engine
from grpo.runs import RunDir
from grpo.tasks import load_problems, question_numbers
from grpo.tokenization import tokenize_prompt_and_output
from grpo.train_step import summarize_rollouts
from grpo.update import policy_gradient_update

BAD_UPDATES_TO_STOP = 3
VALIDATION_SEED = 1_000_000_007  # far from every step's


class TrainingStopped(RuntimeError):
    """Training stopped by itself; the message says why and which checkpoint was saved."""


@dataclass(frozen=True)
class RunResult:
    """What `train` returns."""

    run: RunDir
    """The run directory."""
    model: Any
    """The trained policy."""
    tokenizer: Any
    """Its tokenizer."""
    step: int
    """Rollout steps that were done."""
    validation: list[dict[str, Any]]
    """The validation rows of metrics.jsonl, in order."""
    train_seconds: float
    """Seconds in rollouts and updates, validation and saving apart; of this call, not of a run that it resumed."""


@contextlib.contextmanager
def finish_step_on_signal() -> Iterator[list[int]]:
    """The first Ctrl-C (or SIGTERM) is noted in the list that this yields; the second one raises KeyboardInterrupt."""
    received: list[int] = []

    def note(number: int, _frame: Any) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        tqdm.write("stopping after this step; once more to stop at once")

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # signals can only be caught in the main thread: elsewhere Ctrl-C is not ours
        before = {}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Trainer:
    """A run in progress: the policy, its optimizer, the engine, the problems, and the directory that it writes."""

    def __init__(
        self,
        settings: TrainSettings,
        reward_fn: RewardFn | None,
        problems: tuple[Sequence[Problem], Sequence[Problem]] | None,
        resume: bool,
        progress: bool,
    ) -> None:
        self.settings, self.progress = settings, progress
        if settings.threads is not None:
            torch.set_num_threads(settings.threads)
        self.prompt: Prompt = load_prompt(settings.prompt)
        self.reward_fn = reward_fn or self.prompt.reward_fn
        self.train_problems, self.validation_problems = problems or load_problems(settings)
        if not self.train_problems or not self.validation_problems:
            raise ValueError("problems holds no training or no validation problem; give at least one of each")
        config = settings.to_json() | {"reward_fn": full_name(self.reward_fn)}
        self.device = resolve_device(settings.device)
        self.autocast_dtype = torch.bfloat16 if self.device.type == "cuda" and settings.autocast else None

        self.run = RunDir(settings.folder())
        check_engine(settings.engine, settings.engine_options(), self.device)
        self.run.check(config, resume)
        self.tracker = open_tracker(settings.tracker)
        steps_saved = self.run.checkpoint_steps() if resume else []
        self.step = steps_saved[-1] if steps_saved else 0
        checkpoint = self.run.checkpoint(self.step) if steps_saved else None
        if checkpoint:
            check_checkpoint(checkpoint)

        self.model, self.tokenizer = load_model(checkpoint or settings.model, device=settings.device)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=settings.learning_rate,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
        )
        self.reference = None
        if settings.kl_coef > 0:
            start = load_model(settings.model, device=settings.device)[0] if checkpoint else copy.deepcopy(self.model)
            self.reference = start.eval().requires_grad_(False)
        self._check_prompts_fit()

        counts: dict[str, int] = {}
        if checkpoint:
            counts = restore_checkpoint(checkpoint, self.optimizer)
        else:
            seed_everything(settings.seed)
        self.skipped_updates, self.bad_updates = counts.get("skipped_updates", 0), counts.get("bad_updates", 0)
        self.last_good_step = counts.get("last_good_step", self.step)
        self.engine = open_engine(
            settings.engine,
            self.model,
            self.tokenizer,
            max_batch_tokens=settings.max_batch_tokens,
            autocast_dtype=self.autocast_dtype,
            options=settings.engine_options(),
        )
        # Only now is anything written: a model or file that cannot be had leaves everything as it was.
        self.run.create(config)
        for file in settings.own_files():
            shutil.copy(file, self.run.path)
        self.run.cut_back(self.step if checkpoint else -1)
        if self.tracker:
            self.tracker.init(project="grpo-lab", name=self.run.path.name, config=config)

    def _check_prompts_fit(self) -> None:
        """Raise ValueError now for a question that would stop the run later."""
        for split, problems in (("training", self.train_problems), ("validation", self.validation_problems)):
            check_prompts_fit(self.model, self.tokenizer, self.prompt, problems, self.settings.max_new_tokens, split)

    def rollout(self) -> tuple[list[Problem], list[Completion]]:
        """Sample the responses of the current step: problems repeated for each of their responses, and completions."""
        settings = self.settings
        numbers = question_numbers(self.step, settings.prompts_per_step, len(self.train_problems), settings.seed)
        chosen = [self.train_problems[number] for number in numbers]
        sampling = settings.sampling(settings.seed * 1_000_003 + self.step, self.prompt.stop)
        with self._bar(settings.rollout_batch, "rollouts", leave=False) as bar:
            self.engine.on_progress = bar.update
            completions = self.engine.generate([self.prompt.render(p.question) for p in chosen], sampling)
            self.engine.on_progress = None
        return [problem for problem in chosen for _ in range(settings.group_size)], completions

    def train_on(self, problems: list[Problem], completions: list[Completion]) -> dict[str, float]:
        """Grade a rollout batch and do all of its updates; returns the step's metrics."""
        settings = self.settings
        batch = tokenize_prompt_and_output(
            [self.prompt.render(p.question) for p in problems],
            [c.text for c in completions],
            self.tokenizer,
            output_token_ids=[c.token_ids for c in completions],
        )
        rewards, reward_metadata = compute_rollout_rewards(
            self.reward_fn, [c.text for c in completions], [p.ground_truth for p in problems]
        )
        advantages, advantage_metadata = compute_group_normalized_rewards(
            rewards, settings.group_size, **settings.advantage_settings()
        )
        metrics = summarize_rollouts(reward_metadata, advantage_metadata, batch["response_mask"], settings.group_size)
        self._log_rollouts(problems, completions, rewards, advantages, batch)
        old = self._log_probs(self.model, batch) if settings.needs_old_log_probs else None
        token_weights = None
        if old is not None:
            from_engine = engine_log_probs([c.log_probs for c in completions], batch["response_mask"])
            metrics |= measure_mismatch(old, from_engine, batch["response_mask"])
            if settings.engine_weight_cap is not None:
                token_weights = truncated_importance_weights(
                    old, from_engine, batch["response_mask"], settings.engine_weight_cap
                )
        reference = self._log_probs(self.reference, batch) if self.reference is not None else None

        updates: list[dict[str, float]] = []
        for number, rows in enumerate(self._train_batches()):
            update = (self.step - 1) * settings.updates_per_step + number
            for group in self.optimizer.param_groups:
                group["lr"] = settings.learning_rate_at(update)
            _, metadata = policy_gradient_update(
                self.model,
                self.optimizer,
                {name: value[rows] for name, value in batch.items()},
                advantages[rows],
                settings.update_settings(self.autocast_dtype),
                None if old is None else old[rows],
                None if reference is None else reference[rows],
                None if token_weights is None else token_weights[rows],
            )
            updates.append(metadata | {"learning_rate": settings.learning_rate_at(update)})
            self._count_bad(bool(metadata["skipped"]))
        return metrics | mean_metrics(updates) | {"skipped_updates": float(self.skipped_updates)}

    def _log_probs(self, model: Any, batch: dict[str, Tensor]) -> Tensor:
        rows_at_once = -(-self.settings.train_batch // self.settings.microbatches)
        result = log_probs_in_batches(
            model, batch, rows_at_once, temperature=self.settings.temperature, autocast_dtype=self.autocast_dtype
        )
        return result.cpu()

    def _train_batches(self) -> Iterator[Tensor]:
        """Rows of each update: whole groups, in a new random order each pass; all rows when the batches are the same."""
        s = self.settings
        groups = s.prompts_per_step
        for number in range(s.passes):
            generator = torch.Generator().manual_seed((s.seed * 1_000_003 + self.step) * 1_009 + number)
            order = torch.randperm(groups, generator=generator) if s.updates_per_step > 1 else torch.arange(groups)
            rows = (order.unsqueeze(1) * s.group_size + torch.arange(s.group_size)).flatten()
            yield from rows.split(s.train_batch)

    def _count_bad(self, skipped: bool) -> None:
        """Count updates that were skipped since loss or gradient was not finite; three in a row end the run."""
        if not skipped:
            self.bad_updates, self.last_good_step = 0, self.step
            return
        self.bad_updates += 1
        self.skipped_updates += 1
        if self.bad_updates >= BAD_UPDATES_TO_STOP:
            # Skipped updates change nothing, so these are the weights of the last good step. What was counted and saved
            # since then goes, or a resumed run would start from a step that is none.
            self.step = self.last_good_step
            self.skipped_updates, self.bad_updates = self.skipped_updates - self.bad_updates, 0
            self.run.drop_checkpoints_after(self.step)
            folder = self.save()
            raise TrainingStopped(
                f"{BAD_UPDATES_TO_STOP} updates in a row had a loss or gradient that is not finite; "
                f"the state after step {self.step}, the last good one, is in {folder}"
            )

    def validate(self) -> dict[str, float]:
        """Sample an answer to each validation question and grade it."""
        sampling = self.settings.sampling(VALIDATION_SEED, n=1)
        with self._bar(len(self.validation_problems), "validation", leave=False) as bar:
            records = evaluate(
                self.engine, self.validation_problems, self.prompt, sampling, reward_fn=self.reward_fn, bar=bar
            )
        return summarize(records).to_json() | accuracy_by_level(records)

    def _log_rollouts(
        self,
        problems: list[Problem],
        completions: list[Completion],
        rewards: Tensor,
        advantages: Tensor,
        batch: dict[str, Tensor],
    ) -> None:
        entropies = response_entropies(
            self.model,
            {name: value[: self.settings.log_rollouts] for name, value in batch.items()},
            temperature=self.settings.temperature,
            autocast_dtype=self.autocast_dtype,
        )
        columns = zip(problems, completions, rewards.tolist(), advantages.tolist(), entropies, strict=False)
        rows = [
            {
                "step": self.step,
                "question": problem.question,
                "ground_truth": problem.ground_truth,
                "response": completion.text,
                "finish_reason": completion.finish_reason,
                "token_ids": completion.token_ids,
                "reward": reward,
                "advantage": advantage,
                "token_entropy": [round(entropy, 3) for entropy in token_entropy],
            }
            for problem, completion, reward, advantage, token_entropy in columns
        ]
        self.run.append("rollouts", rows)

    def save(self) -> Path:
        """Write the checkpoint of the current step, and drop those that are too old."""
        folder = self.run.checkpoint(self.step)
        counts = {name: getattr(self, name) for name in ("skipped_updates", "bad_updates", "last_good_step")}
        save_checkpoint(folder, self.model, self.tokenizer, self.optimizer, **counts)
        self.run.keep_newest(self.settings.keep_checkpoints)
        return folder

    def record(self, kind: str, metrics: dict[str, Any]) -> None:
        """Write a row of metrics, and pass it to the tracker."""
        self.run.append("metrics", [{"kind": kind, "step": self.step} | metrics])
        if self.tracker:
            self.tracker.log({f"{kind}/{name}": value for name, value in metrics.items()}, step=self.step)

    def do_step(self) -> tuple[float, float]:
        """Roll out, update and record one step; returns the seconds that it took and the mean reward."""
        start = time.perf_counter()
        try:
            problems, completions = self.rollout()
            self.engine.sleep()
        except EngineError:
            self.step -= 1  # nothing of this step was done
            raise
        sampled = time.perf_counter()
        metrics = self.train_on(problems, completions)
        self.record("train", metrics)  # before the sync: should that fail, the step is done all the same
        self.engine.sync(self.model)
        end = time.perf_counter()
        tokens = sum(len(completion.token_ids) for completion in completions)
        timing = {"rollout_seconds": sampled - start, "update_seconds": end - sampled}
        timing |= {"rollout_tokens_per_second": tokens / timing["rollout_seconds"]}
        timing |= device_use(self.model, metrics["tokens_processed"], timing["update_seconds"])
        self.run.append("timing", [{"step": self.step} | timing])
        return end - start, metrics["reward"]

    def run_steps(self) -> RunResult:
        """Do the steps that are left; validate, save and stop as the settings and the user say.

        Raises TrainingStopped, with the state saved, when the engine fails.
        """
        try:
            return self._run_steps()
        except EngineError as error:
            folder = self.save()
            raise TrainingStopped(
                f"the state after step {self.step} is in {folder}, go on from it with --resume; {error}"
            ) from error

    def _validate_if_due(self) -> None:
        """Validate after this step, where the settings say so, unless that was done before the run was resumed."""
        due = self.step % self.settings.validate_every == 0 or self.step == self.settings.steps
        if due and self.step not in {row["step"] for row in self.run.read("metrics", "validation")}:
            self.record("validation", self.validate())

    def _run_steps(self) -> RunResult:
        settings, seconds = self.settings, 0.0
        self._validate_if_due()
        with finish_step_on_signal() as signals, self._bar(settings.steps, "steps", initial=self.step) as bar:
            while self.step < settings.steps and not signals:
                self.step += 1
                step_seconds, reward = self.do_step()
                seconds += step_seconds
                last = self.step == settings.steps
                self._validate_if_due()
                if last or signals or self.step % settings.checkpoint_every == 0:
                    self.save()
                bar.set_postfix(reward=f"{reward:.3f}", refresh=False)
                bar.update()
            if signals and self.step and self.step not in self.run.checkpoint_steps():
                self.save()  # the signal came after this step's last look for one
        plot_run(self.run.path)
        validation = self.run.read("metrics", "validation")
        return RunResult(self.run, self.model, self.tokenizer, self.step, validation, seconds)

    def _bar(self, total: int, what: str, **more: Any) -> tqdm:
        return tqdm(total=total, desc=what, disable=not self.progress, dynamic_ncols=True, **more)


def mean_metrics(updates: Sequence[dict[str, float]]) -> dict[str, float]:
    """Metrics of a step from those of its updates: sums of counts, the largest ratio, means of the rest (NaN left out)."""
    result: dict[str, float] = {}
    for name in updates[0]:
        values = [update[name] for update in updates if not math.isnan(update[name])]
        if name in {"rows_pruned", "tokens_processed", "skipped"}:
            result[name] = sum(values)
        elif not values:
            result[name] = math.nan
        else:
            result[name] = max(values) if name == "ratio_max" else sum(values) / len(values)
    return result


def device_use(model: Any, tokens: float, seconds: float) -> dict[str, float]:
    """FLOP/s of the updates as the model alone needs them, 6 x parameters x tokens / seconds; on a GPU its peak memory.

    Parameters are those of matmul_parameters; the seconds hold grading, log-probs and the sync too. peak_memory_gb: the
    most that tensors took since the start, 10^9 bytes.
    """
    use = {"update_flops_per_second": 6 * matmul_parameters(model) * tokens / seconds}
    if model.device.type == "cuda":
        use["peak_memory_gb"] = torch.cuda.max_memory_allocated(model.device) / 1e9
    return use


def full_name(function: Any) -> str:
    """Module and name of a reward function; of a functools.partial the function's, of a callable object its class's."""
    while isinstance(function, functools.partial):
        function = function.func
    owner = function if hasattr(function, "__qualname__") else type(function)
    return f"{owner.__module__}.{owner.__qualname__}"


def open_tracker(name: str) -> Any:
    """The module behind a tracker's name (wandb, trackio, or any with init, log and finish); None for "".

    Raises ModuleNotFoundError when it is not installed, ValueError when it lacks one of the three.
    """
    if not name:
        return None
    try:
        module = importlib.import_module(name)
    except (ImportError, TypeError) as error:  # TypeError: a name that starts with a dot
        raise ModuleNotFoundError(
            f"tracker={name!r} is not installed; pip install {name}, or leave tracker out"
        ) from error
    lacking = [function for function in ("init", "log", "finish") if not callable(getattr(module, function, None))]
    if lacking:
        raise ValueError(f"tracker={name!r} has no {', '.join(lacking)}; expected a module like wandb or trackio")
    return module


def train(
    settings: TrainSettings | None = None,
    *,
    reward_fn: RewardFn | None = None,
    problems: tuple[Sequence[Problem], Sequence[Problem]] | None = None,
    resume: bool = False,
    progress: bool = True,
) -> RunResult:
    """Train a policy with GRPO or a relative; write the run directory; return the trained policy and its metrics.

    settings: default, the preset `tiny`. reward_fn: (response, ground_truth) -> {"reward", "format_reward",
    "answer_reward"}; default, the prompt's own. problems: (training, validation); default, what settings.data names.
    resume: go on from the newest checkpoint of the run directory.

    Raises ValueError and its relatives before anything is computed or written when settings, model, data and run
    directory do not fit each other; TrainingStopped, with the last good step saved, after three updates in a row whose
    loss or gradient is not finite. The first Ctrl-C finishes the step, saves and returns.
    """
    trainer = Trainer(settings or preset("tiny"), reward_fn, problems, resume, progress)
    try:
        return trainer.run_steps()
    finally:
        trainer.engine.close()
        trainer.run.release()
        if trainer.tracker:
            trainer.tracker.finish()
