"""Evaluation: sample answers to questions, grade them, and count by category.

Categories as in the assignment: format and answer right; format right, answer wrong; format wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from tqdm.auto import tqdm

from grpo.data import Problem
from grpo.intervals import wilson_interval
from grpo.prompts import Prompt
from grpo.rewards import RewardFn, compute_rollout_rewards
from grpo.rollouts import RolloutEngine, Sampling
from grpo.tokenization import encode

# Questions a call of the engine: enough to fill its batches, few enough that a bar moves and a stop loses little.
QUESTIONS_AT_ONCE = 256


@dataclass(frozen=True)
class Summary:
    """Counts and means over graded responses."""

    n: int
    """Responses."""
    format_and_right: int
    """Format right, answer right."""
    format_only: int
    """Format right, answer wrong."""
    neither: int
    """Format wrong."""
    accuracy: float
    """Share with answer reward 1."""
    accuracy_low: float
    """Lower end of its 95% Wilson interval."""
    accuracy_high: float
    """Upper end."""
    format: float
    """Share with format reward 1."""
    reward: float
    """Mean reward."""
    mean_tokens: float
    """Mean response length, in tokens, the eos token included."""
    cut_off: float
    """Share that reached the longest length without ending."""

    def to_json(self) -> dict[str, float]:
        """The fields as a dict."""
        return asdict(self)


def check_prompts_fit(
    model: Any, tokenizer: Any, prompt: Prompt, problems: Sequence[Problem], max_new_tokens: int, split: str = ""
) -> None:
    """Raise ValueError now for a question, of any number, that would stop a run or an evaluation later.

    That is when the prompt with max_new_tokens is longer than the model's context. split: what to call the questions.
    """
    context = getattr(model.config, "max_position_embeddings", None)
    lengths = [len(ids) for ids in encode([prompt.render(problem.question) for problem in problems], tokenizer)]
    longest = max(lengths)
    if context is not None and longest + max_new_tokens > context:
        question = problems[lengths.index(longest)].question
        raise ValueError(
            f"{split} question {question[:80]!r} is {longest} tokens with prompt={prompt.name!r}; with "
            f"max_new_tokens={max_new_tokens} that exceeds the model's context of {context}".lstrip()
        )


def evaluate(
    engine: RolloutEngine,
    problems: Sequence[Problem],
    prompt: Prompt,
    sampling: Sampling,
    *,
    reward_fn: RewardFn | None = None,
    bar: tqdm | None = None,
    sink: Callable[[list[dict[str, Any]]], object] | None = None,
) -> list[dict[str, Any]]:
    """Sample sampling.n responses to each problem and grade them; one record a response, in order.

    reward_fn: default, the prompt's own. The prompt's stop strings are used. `bar` moves on by one a response; `sink` gets
    the records of QUESTIONS_AT_ONCE questions as they are graded, so that a long evaluation can be written as it goes.
    Record: question, level, ground_truth, response, tokens, finish_reason, reward, format_reward, answer_reward.
    """
    reward_fn = reward_fn or prompt.reward_fn
    records: list[dict[str, Any]] = []
    for start in range(0, len(problems), QUESTIONS_AT_ONCE):
        some = problems[start : start + QUESTIONS_AT_ONCE]
        # Every call samples anew; the same seed would draw the same random numbers for each.
        call = replace(sampling, stop=prompt.stop, seed=sampling.seed + start)
        completions = engine.generate([prompt.render(problem.question) for problem in some], call)
        repeated = [problem for problem in some for _ in range(sampling.n)]
        rewards, metadata = compute_rollout_rewards(
            reward_fn, [c.text for c in completions], [p.ground_truth for p in repeated]
        )
        columns = zip(
            repeated,
            completions,
            rewards.tolist(),
            metadata["format_rewards"].tolist(),
            metadata["answer_rewards"].tolist(),
            strict=True,
        )
        graded = [
            {
                "question": problem.question,
                "level": problem.level,
                "ground_truth": problem.ground_truth,
                "response": completion.text,
                "tokens": len(completion.token_ids),
                "finish_reason": completion.finish_reason,
                "reward": reward,
                "format_reward": format_reward,
                "answer_reward": answer_reward,
            }
            for problem, completion, reward, format_reward, answer_reward in columns
        ]
        records += graded
        if sink is not None:
            sink(graded)
        if bar is not None:
            bar.set_postfix(accuracy=f"{summarize(records).accuracy:.3f}", refresh=False)
            bar.update(len(completions))
    return records


def summarize(records: Sequence[dict[str, Any]]) -> Summary:
    """Counts and means of the records of `evaluate`. Raises ValueError when there are none."""
    if not records:
        raise ValueError("records is empty; there is nothing to summarize")
    n = len(records)
    well_formed = [r["format_reward"] == 1 for r in records]
    right = [r["answer_reward"] == 1 for r in records]
    both = sum(f and a for f, a in zip(well_formed, right, strict=True))
    low, high = wilson_interval(sum(right), n)
    return Summary(
        n=n,
        format_and_right=both,
        format_only=sum(well_formed) - both,
        neither=n - sum(well_formed),
        accuracy=sum(right) / n,
        accuracy_low=low,
        accuracy_high=high,
        format=sum(well_formed) / n,
        reward=sum(r["reward"] for r in records) / n,
        mean_tokens=sum(r["tokens"] for r in records) / n,
        cut_off=sum(r["finish_reason"] == "length" for r in records) / n,
    )


def accuracy_by_level(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Share with answer reward 1 among the records of each difficulty level, as accuracy_level_<level>.

    Empty unless there are two levels at least.
    """
    levels = sorted({r["level"] for r in records if r["level"]})
    if len(levels) < 2:
        return {}
    by_level = {level: [r["answer_reward"] == 1 for r in records if r["level"] == level] for level in levels}
    return {f"accuracy_level_{level}": sum(right) / len(right) for level, right in by_level.items()}
