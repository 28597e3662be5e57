"""Core checks of what is made of text: token rows with their mask, rewards, verdicts.

Each check takes a learner's function and returns one message, which starts with "Right" when the function is right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from grpo.checks.judge import WrongAnswer, as_tensor, call, entry, expect, judged, value_and_metadata

PAD, EOS, BOS, JOINED = 0, 1, 2, 7

PROMPTS, OUTPUTS = ["ca", "d", "dcdc"], ["bd$", "c$", "a"]
INPUT_IDS = torch.tensor([[5, 3, 4, 6], [6, 5, 1, 0], [6, 5, 6, 5]], dtype=torch.float64)
LABELS = torch.tensor([[3, 4, 6, 1], [5, 1, 0, 0], [5, 6, 5, 3]], dtype=torch.float64)
MASK = torch.tensor([[0, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 1]], dtype=torch.float64)


def small_tokenizer(pad_token: str = "_") -> Any:
    """Return a tokenizer of eight tokens: one a character, and "ab" too. "$" is eos; "^" is put first, unless declined."""
    from tokenizers import Tokenizer, models, processors
    from transformers import PreTrainedTokenizerFast

    ids = {"_": PAD, "$": EOS, "^": BOS, "a": 3, "b": 4, "c": 5, "d": 6, "ab": JOINED}
    tokenizer = Tokenizer(models.BPE(ids, merges=[("a", "b")]))
    tokenizer.post_processor = processors.TemplateProcessing(single="^ $A", special_tokens=[("^", BOS)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=pad_token, eos_token="$", bos_token="^")


@judged
def check_tokenize_prompt_and_output(function: Callable[..., Any]) -> str:
    """Rows of prompt + output: ids, next-token labels, and the mask of the labels that the policy chose."""
    result = call(function, list(PROMPTS), list(OUTPUTS), small_tokenizer())
    _check_ids(result)
    given = entry(result, "response_mask")
    mask = as_tensor(given, "response_mask", (3, 4), "It has one entry a label.")
    nothing = torch.zeros(3, 1, dtype=torch.float64)
    on_inputs = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 0], [0, 0, 0, 0]], dtype=torch.float64)
    not_padding = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 1]], dtype=torch.float64)
    mistakes = [
        (
            on_inputs,
            "Mask off by one: yours is True where the *input* is a response token. It goes with the labels: the first "
            "response token is predicted from the last prompt token. Drop the mask's first column, not its last.",
        ),
        (
            torch.cat([MASK[:, 1:], nothing], dim=1),
            "Mask off by one: shifted twice. It is True where the *label* is a response token.",
        ),
        (not_padding, "Prompt tokens are trained on: your mask is True for them. Only the response was chosen."),
        (
            torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 1]], dtype=torch.float64),
            "Padding is counted: your mask is True after the end of a row. Make it from the lengths.",
        ),
        (torch.ones_like(MASK), "Your mask is True everywhere: leave out the prompt and the padding."),
        (not_padding - MASK, "The mask is the wrong way round: True on the prompt. Mark the response."),
        (1 - MASK, "The mask is the wrong way round: it must be True on the response, not off it."),
        (
            MASK * (LABELS != EOS),
            "The eos is lost: the end of a response was sampled like any other token, and is to be learned. Your mask "
            "leaves it out.",
        ),
    ]
    expect(mask, MASK, mistakes, "response_mask")
    again = call(function, list(PROMPTS), list(OUTPUTS), small_tokenizer("$"), setting="pad_token = eos_token")
    mask = as_tensor(entry(again, "response_mask"), "response_mask", (3, 4))
    lost = (
        MASK * (LABELS != EOS),
        "the eos is lost. Many models pad with it: make the mask from lengths, not from ids.",
    )
    expect(mask, MASK, [lost], "response_mask", "pad_token = eos_token")
    if given.dtype != torch.bool:
        return (
            f"The mask has the right values and is {given.dtype}; make it bool. With numbers, `loss[mask]` takes rows 0 "
            "and 1 instead of masking, and `~mask` is -1 and -2."
        )
    return "Right: ids and labels are one token apart, and the mask marks the response's labels, eos included."


def _check_ids(result: Any) -> None:
    ids, labels = entry(result, "input_ids"), entry(result, "labels")
    for name, value in (("input_ids", ids), ("labels", labels)):
        if not isinstance(value, torch.Tensor) or value.ndim != 2 or len(value) != 3:
            raise WrongAnswer(f"{name} must be a tensor (N, T) with a row for each of the N = 3 pairs.")
    if (ids == BOS).any():
        raise WrongAnswer("Special tokens were added (id 2, bos): tokenize with add_special_tokens=False.")
    if (ids == JOINED).any():
        raise WrongAnswer(
            'You tokenize prompt and output as one string: "ca" + "bd" became c, ab, d, and the token "ab" is half prompt, '
            "half response. Tokenize the two apart, and join the ids."
        )
    if ids[1, 0] == PAD:
        raise WrongAnswer("Your rows are padded on the left; pad on the right, after joining prompt and output.")
    if (labels < 0).any():
        raise WrongAnswer("Your labels hold negative ids (-100?). Keep the pad id there: the mask says what counts.")
    if (labels[2] == EOS).any():
        raise WrongAnswer("You add an eos that was not in the output: a response cut off for length has none.")
    if ids.shape[1] == 5:
        raise WrongAnswer(
            "input_ids has 5 columns, as many as the longest row: its last column is only a label. Drop it."
        )
    found = as_tensor(ids, "input_ids", (3, 4), "T is the longest prompt + output, less one.")
    unshifted = (
        INPUT_IDS,
        "Labels not shifted: they equal input_ids. labels[:, t] is the token *after* input_ids[:, t].",
    )
    back = torch.cat([torch.zeros(3, 1, dtype=torch.float64), INPUT_IDS[:, :-1]], dim=1)
    cut = torch.tensor([[5, 3, 4, 6], [6, 5, 0, 0], [6, 5, 6, 5]], dtype=torch.float64)
    early = (cut, "You drop each row's last token before padding. Pad first, then drop the last column of the batch.")
    swapped = (LABELS, "input_ids holds the labels: it is the rows without the last column, labels without the first.")
    expect(found, INPUT_IDS, [early, swapped], "input_ids")
    shifted_back = (back, "Labels shifted the wrong way: yours are the token *before* each input, not after.")
    expect(as_tensor(labels, "labels", (3, 4)), LABELS, [unshifted, shifted_back], "labels")


@judged
def check_compute_rollout_rewards(function: Callable[..., Any]) -> str:
    """One reward a rollout, from the reward function's "reward", in order."""
    responses, truths = ["a", "b", "c", "d"], ["1", "2", "3", "4"]
    table = {("a", "1"): (0.25, 1, 0), ("b", "2"): (-1.0, 0, 1), ("c", "3"): (2.0, 1, 1), ("d", "4"): (0.5, 0, 0)}
    calls: list[tuple[str, str]] = []

    def reward_fn(response: str, ground_truth: str) -> dict[str, float]:
        calls.append((response, ground_truth))
        reward, format_reward, answer_reward = table.get((response, ground_truth), (0.0, 0, 0))
        return {"reward": reward, "format_reward": format_reward, "answer_reward": answer_reward}

    result = call(function, reward_fn, responses, truths)
    if any(response in truths for response, _ in calls):
        raise WrongAnswer("You call reward_fn(ground_truth, response); it takes the response first.")
    if calls and {truth for _, truth in calls} == {"1"}:
        raise WrongAnswer("Every response is graded against the first ground truth. Each has its own: zip the lists.")
    if calls and sorted(calls) != sorted(table):
        raise WrongAnswer(
            f"reward_fn should be called once for each response with its ground truth: 4 calls. You made {len(calls)}, "
            f"the first {calls[:5]}."
        )
    values = value_and_metadata(result, "raw_rewards")
    found = as_tensor(values, "raw_rewards", (4,), "One number a rollout.")
    reward, format_reward, answer_reward = torch.tensor(list(table.values()), dtype=torch.float64).unbind(dim=1)
    mistakes = [
        (answer_reward, 'You take "answer_reward". What is paid is "reward"; the other two are only logged.'),
        (format_reward, 'You take "format_reward". What is paid is "reward"; the other two are only logged.'),
        (format_reward + answer_reward, 'You add format and answer. What is paid is "reward" alone.'),
        (reward + format_reward + answer_reward, 'You add all three. What is paid is "reward" alone.'),
        (reward.trunc(), "Rewards are cut to whole numbers: 0.25 became 0. Make a float tensor."),
        ((reward > 0).double(), "Rewards became 0 or 1. A reward may be any number: 0.25, -1, 2."),
        (reward.clamp(min=0), "Negative rewards became 0. A reward may be any number."),
        (reward - reward.mean(), "You already subtract the mean: these are to be the raw rewards."),
        (reward.flip(0), "The order is turned round: raw_rewards[i] belongs to rollout_responses[i]."),
    ]
    expect(found, reward, mistakes, "raw_rewards")
    if not values.is_floating_point():
        raise WrongAnswer(f"raw_rewards is {values.dtype}; make it float: an integer tensor has no mean.")

    def whole(response: str, ground_truth: str) -> dict[str, float]:
        return {"reward": 1, "format_reward": 1, "answer_reward": 1}

    values = value_and_metadata(call(function, whole, ["a"], ["1"]), "raw_rewards")
    if not as_tensor(values, "raw_rewards", (1,)).equal(torch.ones(1).double()) or not values.is_floating_point():
        return f"When reward_fn returns the integer 1, raw_rewards is {values.dtype}. Give torch.tensor a float dtype."
    return 'Right: one float a rollout, in order, from "reward" alone.'
