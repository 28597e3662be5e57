"""Each core check: grpo's own function is right; typical wrong ones, written here, get the right diagnosis."""

from __future__ import annotations

import functools
import re

import pytest
import torch

import grpo
from grpo.checks import command
from grpo.checks.core import CORE_CHECKS
from grpo.checks.worker import judge, load
from grpo.cli import main


def diagnose(name, function, expected):
    message = CORE_CHECKS[name](function)
    assert expected in message, message
    assert not message.startswith("Right")


@pytest.mark.parametrize("name", CORE_CHECKS)
def test_grpos_own_function_is_right(name):
    message = CORE_CHECKS[name](getattr(grpo, name))
    assert message.startswith("Right: "), message


def test_every_public_name_of_the_core_has_a_check():
    assert len(CORE_CHECKS) == 10
    assert set(CORE_CHECKS) <= set(grpo.__all__)


def no_such_key(*args, **kwargs):
    settings = {}
    return settings["clip"]


@pytest.mark.parametrize("name", CORE_CHECKS)
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda *args, **kwargs: None, "returns nothing"),
        (lambda *args, **kwargs: ..., "returns nothing"),
        (no_such_key, "stopped with KeyError: 'clip' (line "),
        (lambda: 1, "stopped with TypeError"),
        (3, "Give the function itself"),
        (lambda *args, **kwargs: exit(), "stopped with SystemExit"),
    ],
)
def test_stubs_and_errors(name, function, expected):
    message = CORE_CHECKS[name](function)
    assert expected in message
    assert "Traceback" not in message


@pytest.mark.parametrize("name", CORE_CHECKS)
@pytest.mark.parametrize(
    "result", [1, "text", [1.0], {}, (1, 2), torch.zeros(1), (torch.zeros(7), {}), {"log_probs": 3}]
)
def test_any_result_gets_a_message(name, result):
    message = CORE_CHECKS[name](lambda *args, **kwargs: result)
    assert message
    assert not message.startswith("Right")


def test_the_learners_own_last_line_is_named():
    assert 'return settings["clip"]' in CORE_CHECKS["compute_kl"](no_such_key)


# ---- tokens ------------------------------------------------------------------------------------------------------


def tokens(
    mask=lambda is_output, real, ids: is_output[:, 1:],
    labels=lambda ids: ids[:, 1:],
    inputs=lambda ids: ids[:, :-1],
    joint=False,
    special=False,
    left=False,
    eos="",
):
    def function(prompts, outputs, tokenizer):
        def encode(text):
            return tokenizer.encode(text, add_special_tokens=special)

        rows = [(encode(p), encode(o + eos)) for p, o in zip(prompts, outputs, strict=True)]
        if joint:
            whole = [encode(p + o) for p, o in zip(prompts, outputs, strict=True)]
            lengths = [len(encode(p)) for p in prompts]
            rows = [(ids[:n], ids[n:]) for ids, n in zip(whole, lengths, strict=True)]
        width = max(len(p + o) for p, o in rows)
        ids = torch.full((len(rows), width), tokenizer.pad_token_id)
        is_output, real = torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool)
        for i, (p, o) in enumerate(rows):
            start = width - len(p + o) if left else 0
            ids[i, start : start + len(p + o)] = torch.tensor(p + o)
            is_output[i, start + len(p) : start + len(p + o)] = True
            real[i, start : start + len(p + o)] = True
        pad = tokenizer.pad_token_id
        return {"input_ids": inputs(ids), "labels": labels(ids), "response_mask": mask(is_output, real, (ids, pad))}

    return function


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"mask": lambda o, real, ids: o[:, :-1]}, "Mask off by one"),
        ({"mask": lambda o, real, ids: real[:, 1:]}, "Prompt tokens are trained on"),
        ({"mask": lambda o, real, ids: o[:, 1:] | ~real[:, 1:]}, "Padding is counted"),
        ({"mask": lambda o, real, ids: ~o[:, 1:]}, "wrong way round"),
        ({"mask": lambda o, real, ids: real[:, 1:] & ~o[:, 1:]}, "wrong way round"),
        ({"mask": lambda o, real, ids: o[:, 1:] & (ids[0][:, 1:] != 1)}, "The eos is lost"),
        (
            {"mask": lambda o, real, ids: o[:, 1:] & (ids[0][:, 1:] != ids[1])},
            "With pad_token = eos_token: the eos is lost",
        ),
        ({"mask": lambda o, real, ids: o[:, 1:].long()}, "make it bool"),
        ({"mask": lambda o, real, ids: o}, "response_mask has shape (3, 5); expected (3, 4)"),
        ({"labels": lambda ids: ids[:, :-1]}, "Labels not shifted"),
        ({"inputs": lambda ids: ids, "labels": lambda ids: ids}, "5 columns"),
        ({"inputs": lambda ids: ids[:, 1:]}, "input_ids holds the labels"),
        ({"joint": True}, "as one string"),
        ({"special": True}, "add_special_tokens=False"),
        ({"left": True}, "padded on the left"),
        ({"eos": "$"}, "You add an eos"),
    ],
)
def test_tokenize(settings, expected):
    diagnose("tokenize_prompt_and_output", tokens(**settings), expected)


def test_tokenize_written_another_way_is_right():
    assert CORE_CHECKS["tokenize_prompt_and_output"](tokens()).startswith("Right")


# ---- log-probs ---------------------------------------------------------------------------------------------------


def log_probs(
    score=lambda logits: logits.log_softmax(-1),
    entropy=lambda p: -(p * p.log()).sum(-1),
    after=lambda found: found,
    use=lambda ids, labels: labels,
):
    def function(model, input_ids, labels, return_token_entropy=False):
        logits = model(input_ids).logits
        chosen = use(input_ids, labels).unsqueeze(-1)
        result = {"log_probs": after(score(logits).gather(-1, chosen).squeeze(-1))}
        return result | ({"token_entropy": entropy(logits.softmax(-1))} if return_token_entropy else {})

    return function


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"score": lambda x: x}, "these are logits"),
        ({"score": lambda x: x.softmax(-1)}, "these are probabilities"),
        ({"score": lambda x: -x.log_softmax(-1)}, "wrong sign"),
        ({"score": lambda x: x.log_softmax(1)}, "wrong axis: over positions"),
        ({"score": lambda x: x.log_softmax(0)}, "wrong axis: over the batch"),
        ({"score": lambda x: (x / 0.7).log_softmax(-1)}, "temperature of 0.7"),
        ({"use": lambda ids, labels: ids}, "logits not shifted"),
        ({"score": lambda x: x.log_softmax(-1).roll(1, 1)}, "shifted twice"),
        ({"after": lambda found: found[:, 1:]}, "one token apart already"),
        ({"after": lambda found: found.sum(1)}, "log_probs has shape (2,)"),
        ({"after": lambda found: found.detach()}, "no gradient reaches the model"),
        ({"score": lambda x: x.softmax(-1).log()}, "underflows"),
        ({"score": lambda x: (x.exp() / x.exp().sum(-1, keepdim=True)).log()}, "use log_softmax"),
        ({"entropy": lambda p: (p * p.log()).sum(-1)}, "wrong sign: the entropy"),
        ({"entropy": lambda p: -(p * p.log()).mean(-1)}, "mean over the vocabulary"),
        ({"entropy": lambda p: -(p * p.log2()).sum(-1)}, "base 2"),
        ({"entropy": lambda p: -p.log().sum(-1)}, "weights p are missing"),
    ],
)
def test_log_probs(settings, expected):
    diagnose("get_response_log_probs", log_probs(**settings), expected)


def test_log_probs_without_entropy():
    found = log_probs()
    diagnose("get_response_log_probs", lambda m, i, y, e=False: found(m, i, y), "lacks the key 'token_entropy'")


# ---- rewards -----------------------------------------------------------------------------------------------------


def rewards(pay=lambda r: r["reward"], make=torch.tensor, pairs=zip):
    def function(reward_fn, responses, truths):
        return make([pay(reward_fn(*pair)) for pair in pairs(responses, truths)]), {}

    return function


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"pay": lambda r: r["answer_reward"]}, '"answer_reward"'),
        ({"pay": lambda r: r["format_reward"]}, '"format_reward"'),
        ({"pay": lambda r: r["format_reward"] + r["answer_reward"]}, "format and answer"),
        ({"pay": lambda r: int(r["reward"])}, "cut to whole numbers"),
        ({"pay": lambda r: float(r["reward"] > 0)}, "became 0 or 1"),
        ({"make": lambda values: values}, "a list; expected a tensor"),
        ({"make": lambda values: torch.tensor(values).mean()}, "shape ()"),
        ({"pairs": lambda responses, truths: zip(truths, responses, strict=True)}, "response first"),
        ({"pairs": lambda responses, truths: [(r, truths[0]) for r in responses]}, "first ground truth"),
        ({"pairs": lambda responses, truths: [(r, t) for r in responses for t in truths]}, "You made 16"),
        ({}, "the integer 1"),
    ],
)
def test_rewards(settings, expected):
    diagnose("compute_rollout_rewards", rewards(**settings), expected)


def graded(pay=lambda right, form: right, equal=None, cut=None):
    """The r1_zero reward function with another way to pay, compare or cut."""

    def function(response, truth):
        found = grpo.r1_zero_reward_fn(response, truth)
        form, right = found["format_reward"], found["answer_reward"]
        if form and equal:
            answer = response.split("<answer>")[1].split("</answer>")[0].strip()
            right = float(bool(equal(answer, truth)))
        if cut:
            form = float(cut(response))
            right *= form
        return {"reward": float(pay(right, form)), "format_reward": form, "answer_reward": right}

    return function


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"pay": lambda right, form: form}, "You pay for the format"),
        ({"pay": lambda right, form: (right + form) / 2}, "The reward is 0 or 1"),
        ({"equal": lambda answer, truth: answer == truth}, "you compare strings"),
        ({"equal": lambda answer, truth: truth in answer}, "118 is not 18"),
        ({"equal": lambda answer, truth: float(answer.strip("$").replace(",", "")) == float(truth)}, "ValueError"),
        ({"cut": lambda response: "</think> <answer>" in response and "</answer>" in response}, "white space between"),
        ({"pay": lambda right, form: 0}, "the plainest right answer is not paid"),
    ],
)
def test_r1_zero(settings, expected):
    diagnose("r1_zero_reward_fn", graded(**settings), expected)


def test_r1_zero_floats_and_answers_without_tags():
    def by_float(answer, truth):
        try:
            return float(answer.strip("$").replace(",", "")) == float(truth)
        except ValueError:
            return False

    diagnose("r1_zero_reward_fn", graded(equal=by_float), "a float cannot tell apart")

    def on_the_answer_only(response, truth):
        found = grpo.r1_zero_reward_fn(response, truth)
        right = float(found["answer_reward"] or response.rstrip(".").endswith(f"is {truth}"))
        return found | {"reward": right, "answer_reward": right}

    diagnose("r1_zero_reward_fn", on_the_answer_only, "without tags the format is wrong")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"\\boxed\{(.*?)\}", "you take another"),
        (r".*\\boxed\{([^{}]*)\}", "braces nest"),
    ],
)
def test_question_only(pattern, expected):
    def function(response, truth):
        match = re.search(pattern, response, re.DOTALL)
        answer = "" if match is None else match[1].rstrip(".} ")
        return grpo.question_only_reward_fn(rf"\boxed{{{answer}}}", truth)

    diagnose("question_only_reward_fn", function, expected)


def test_question_only_accepts_a_box_that_is_not_closed():
    diagnose("question_only_reward_fn", lambda r, truth: grpo.question_only_reward_fn(r + "}", truth), "not closed")


def test_question_only_pays_the_format():
    def function(response, truth):
        found = grpo.question_only_reward_fn(response, truth)
        return found | {"reward": found["format_reward"]}

    diagnose("question_only_reward_fn", function, "You pay for the format")


# ---- advantages --------------------------------------------------------------------------------------------------


def advantages(default):
    """Right, but for what the default settings do to a (groups, g) table."""

    def function(raw, group_size, baseline="mean", advantage_eps=1e-6, advantage_normalizer="std"):
        if (baseline, advantage_normalizer) == ("mean", "std") and len(raw) > 8:
            return default(raw.view(-1, group_size), advantage_eps).reshape(-1), {}
        return grpo.compute_group_normalized_rewards(raw, group_size, baseline, advantage_eps, advantage_normalizer)

    return function


def mean(r):
    return r.mean(1, keepdim=True)


def std(r, **settings):
    return r.std(1, keepdim=True, **settings)


@pytest.mark.parametrize(
    ("default", "expected"),
    [
        (lambda r, eps: (r - mean(r)) / (r.std() + eps), "std over the batch instead of the group"),
        (lambda r, eps: (r - r.mean()) / (r.std() + eps), "mean and std over the batch"),
        (lambda r, eps: (r - r.mean()) / (std(r) + eps), "mean over the batch"),
        (lambda r, eps: (r - mean(r)) / (std(r, correction=0) + eps), "population std"),
        (lambda r, eps: (r - mean(r)) / (r.var(1, keepdim=True) + eps).sqrt(), "eps is inside the root"),
        (lambda r, eps: (r - mean(r)) / std(r) + eps, "eps is outside the fraction"),
        (lambda r, eps: (r - mean(r)) / std(r), "eps is missing"),
        (lambda r, eps: (r - mean(r)) / (r.var(1, keepdim=True) + eps), "divides by the variance"),
        (lambda r, eps: (mean(r) - r) / (std(r) + eps), "wrong sign"),
        (lambda r, eps: r - mean(r), "not divided"),
        (lambda r, eps: r / (std(r) + eps), "subtract the group's mean"),
        (lambda r, eps: ((t := r.reshape(4, 3)) - t.mean(0)) / (t.std(0) + eps), "rollouts of one prompt are adjacent"),
        (lambda r, eps: (r - mean(r)) / (2 * std(r) + eps), "advantages[1] is"),
        (lambda r, eps: r.mean(1), "advantages has shape (3,); expected (12,)"),
    ],
)
def test_advantages(default, expected):
    diagnose("compute_group_normalized_rewards", advantages(default=default), expected)


def replaced(name, when, value):
    """grpo's function, but for calls that `when` picks: there value(*arguments)."""
    original = getattr(grpo, name)

    def function(*args, **kwargs):
        return value(*args, **kwargs) if when(*args, **kwargs) else original(*args, **kwargs)

    return function


def naive_advantages(raw, g, baseline="mean", eps=1e-6, normalizer="std"):
    r = raw.view(-1, g)
    return ((r - mean(r)) / (std(r) + eps)).reshape(-1), {}


@pytest.mark.parametrize(
    ("when", "value", "expected"),
    [
        (lambda raw, g, b="mean", e=0, n="std": n == "none", naive_advantages, "the settings are not used"),
        (lambda raw, g, *a: len(raw) == 8, naive_advantages, "Eight rewards of 0.1 get advantages of "),
        (lambda raw, g, *a: g == 1, naive_advantages, "With group_size=1 you return NaN"),
        (
            lambda raw, g, b="mean", *a: b == "leave_one_out",
            lambda raw, g, *a: ((raw.view(-1, g) - mean(raw.view(-1, g))).reshape(-1), {}),
            "leave the reward itself out",
        ),
        (
            lambda raw, g, b="mean", e=0, n="std": n == "mean",
            lambda raw, g, b, e, n: (
                ((raw.view(-1, g) - mean(raw.view(-1, g))) / mean(raw.view(-1, g))).reshape(-1),
                {},
            ),
            "eps is missing",
        ),
    ],
)
def test_advantage_settings(when, value, expected):
    function = replaced("compute_group_normalized_rewards", when, value)
    diagnose("compute_group_normalized_rewards", function, expected)


def test_advantages_in_place():
    def function(raw, g, *settings):
        result = grpo.compute_group_normalized_rewards(raw, g, *settings)
        raw -= raw.mean()
        return result

    diagnose("compute_group_normalized_rewards", function, "do not compute in place")


# ---- losses ------------------------------------------------------------------------------------------------------


def loss_where(method, wrong):
    """grpo's loss, but for one method: there wrong(A as a column, log-probs, old, e, mask)."""

    def function(a, log_probs, name="none", old=None, e=None, mask=None):
        if name != method:
            return grpo.compute_policy_gradient_loss(a, log_probs, name, old, e, mask)
        return wrong(a.detach().reshape(-1, 1), log_probs, None if old is None else old.detach(), e, mask), {}

    return function


def ratio(p, old):
    return (p - old).exp()


def ppo(w_of, choose=torch.minimum, low=lambda e: 1 - e, high=lambda e: 1 + e):
    def loss(a, p, old, e, mask):
        w = w_of(p, old, mask)
        return -choose(a * w, a * w.clamp(low(e), high(e))).expand_as(p)

    return loss


def plain(p, old, mask):
    return ratio(p, old)


def geometric(p, old, mask):
    d = (p - old).masked_fill(~mask, 0.0)
    return (d.sum(1, keepdim=True) / mask.sum(1, keepdim=True)).exp()


@pytest.mark.parametrize(
    ("method", "wrong", "expected"),
    [
        ("none", lambda a, p, old, e, m: a * p, "wrong sign of the loss"),
        ("none", lambda a, p, old, e, m: -a * p.exp(), "this is -A pi"),
        ("none", lambda a, p, old, e, m: -a.reshape(-1) * p, "spread along columns"),
        ("none", lambda a, p, old, e, m: -(a * p).mean(), "no mean and no sum"),
        ("none", lambda a, p, old, e, m: (-a * p).detach(), "no gradient reaches"),
        ("noclip", lambda a, p, old, e, m: -a * ratio(old, p), "the other way round"),
        ("noclip", lambda a, p, old, e, m: -a * p / old, "quotient of log-probs"),
        ("noclip", lambda a, p, old, e, m: -a * (p - old), "exp is missing"),
        ("noclip", lambda a, p, old, e, m: -a * ratio(p, old) * p, "both multiply A"),
        ("noclip", lambda a, p, old, e, m: -a * ratio(p, old).detach(), "no gradient reaches"),
        ("grpo", lambda a, p, old, e, m: -a * ratio(p, old), "nothing is clipped"),
        ("grpo", lambda a, p, old, e, m: -a * ratio(p, old).clamp(1 - e, 1 + e), "clipped term is taken always"),
        ("grpo", ppo(plain, torch.maximum), "clipped on the wrong side"),
        (
            "grpo",
            lambda a, p, old, e, m: -a * torch.minimum(ratio(p, old), ratio(p, old).clamp(1 - e, 1 + e)),
            "wrong side for negative advantages",
        ),
        ("grpo", ppo(lambda p, old, m: ratio(old, p)), "the other way round"),
        ("grpo", lambda *args: -ppo(plain)(*args), "wrong sign"),
        ("grpo", ppo(plain, low=lambda e: -e, high=lambda e: e), "you clip to [-e, e]"),
        ("grpo", ppo(plain, low=lambda e: 0.8, high=lambda e: 1.2), "cliprange is not used"),
        ("grpo", ppo(plain, low=lambda e: None), "lower side 1 - e is missing"),
        ("gspo", ppo(plain), "ratio per token instead of per sequence"),
        (
            "gspo",
            ppo(lambda p, old, m: (ratio(p, old) * m).sum(1, keepdim=True) / m.sum(1, keepdim=True)),
            "arithmetic",
        ),
        ("gspo", ppo(lambda p, old, m: ((p - old) * m).sum(1, keepdim=True).exp()), "product of the ratios"),
        ("gspo", ppo(lambda p, old, m: (p - old).mean(1, keepdim=True).exp()), "masked positions are in the mean"),
        ("gspo", ppo(lambda p, old, m: ((p - old) * m).mean(1, keepdim=True).exp()), "divided by T"),
        ("gspo", lambda a, p, old, e, m: (-a * geometric(p, old, m)).expand_as(p), "nothing is clipped"),
        ("cispo", lambda a, p, old, e, m: -a * ratio(p, old).detach().clamp(1 - e, 1 + e) * p, "no lower side"),
        ("cispo", lambda a, p, old, e, m: -a * ratio(p, old).clamp(max=1 + e) * p, "the weight is not detached"),
        ("cispo", lambda a, p, old, e, m: -a * ratio(p, old).clamp(max=1 + e), "log pi is missing"),
        ("cispo", lambda a, p, old, e, m: -a * ratio(p, old).detach() * p, "not capped"),
        ("noclip", lambda a, p, old, e, m: -a * ratio(p, old), "old log-probs of -200"),
    ],
)
def test_policy_loss(method, wrong, expected):
    diagnose("compute_policy_gradient_loss", loss_where(method, wrong), expected)


def test_policy_loss_lets_gradients_through():
    def attached(a, p, method="none", old=None, e=None, mask=None):
        return -a.reshape(-1, 1) * p, {}

    diagnose("compute_policy_gradient_loss", attached, "advantage not detached")

    def old_attached(a, p, method="none", old=None, e=None, mask=None):
        if method == "noclip":
            return -a.detach().reshape(-1, 1) * ratio(p, old), {}
        return grpo.compute_policy_gradient_loss(a, p, method, old, e, mask)

    diagnose("compute_policy_gradient_loss", old_attached, "a gradient flows into old_log_probs")


def aggregate_where(method, wrong):
    def function(loss, mask, loss_normalization="sequence", normalization_constant=None):
        if loss_normalization == method:
            return wrong(loss, mask, normalization_constant)
        return grpo.aggregate_loss_across_microbatch(loss, mask, loss_normalization, normalization_constant)

    return function


@pytest.mark.parametrize(
    ("method", "wrong", "expected"),
    [
        ("sequence", lambda x, m, c: (x * m).sum() / m.sum(), "mean over all tokens instead of per sequence"),
        ("sequence", lambda x, m, c: (x * m).mean(), "padding is counted"),
        ("sequence", lambda x, m, c: (x * m).mean(1).mean(), "padding is counted"),
        ("sequence", lambda x, m, c: x.mean(), "the mask is not used"),
        ("sequence", lambda x, m, c: (x * m).sum(1).mean(), "rows are summed"),
        ("sequence", lambda x, m, c: ((x * m).sum(1) / m.sum(1)).sum(), "rows' means are added up"),
        ("sequence", lambda x, m, c: ((x * m).sum(0) / m.sum(0).clamp(min=1)).mean(), "average over rows at each"),
        ("sequence", lambda x, m, c: (x * m).sum(1) / m.sum(1), "the loss has shape (3,)"),
        ("sequence", lambda x, m, c: ((x * m).sum(1) / m.sum(1)).mean(), "0 / 0 is NaN"),
        (
            "sequence",
            lambda x, m, c: ((x * m).sum(1) / m.sum(1).clamp(min=1)).sum() / m.any(1).sum(),
            "left out of the mean",
        ),
        ("sequence", lambda x, m, c: ((x * m).sum(1) / m.sum(1).clamp(min=1)).mean(), "0 * inf is NaN"),
        (
            "sequence",
            lambda x, m, c: (x.masked_fill(~m, 0).sum(1) / m.sum(1).clamp(min=1)).mean().detach(),
            "No gradient passes",
        ),
        ("sequence", lambda x, m, c: ((x * m).sum(1) / m.sum(1)).mean().item(), "is a float"),
        ("constant", lambda x, m, c: ((x * m).sum(1) / m.sum(1)).mean(), "the setting is not used"),
        ("constant", lambda x, m, c: (x * m).sum(1).mean() / c, "number of rows"),
        ("constant", lambda x, m, c: x.sum() / c, "the mask is not used"),
        ("token", lambda x, m, c: (x * m).mean(), "padding is counted"),
    ],
)
def test_aggregation(method, wrong, expected):
    diagnose("aggregate_loss_across_microbatch", aggregate_where(method, wrong), expected)


def kl_where(chosen, wrong):
    def function(p, ref, estimator="k3", mask=None):
        if estimator != chosen:
            return grpo.compute_kl(p, ref, estimator, mask)
        result = wrong(p, ref.detach())
        return result if mask is None else result * mask

    return function


@pytest.mark.parametrize(
    ("estimator", "wrong", "expected"),
    [
        ("k3", lambda p, ref: (p - ref).exp() - 1 - (p - ref), "k3 sign swapped: d ="),
        ("k3", lambda p, ref: (ref - p).exp() - 1 + (ref - p), "sign swapped in the last term"),
        ("k3", lambda p, ref: (p - ref).exp() - 1 - (ref - p), "the same d"),
        ("k3", lambda p, ref: (ref - p).exp() - (ref - p), "the 1 is missing"),
        ("k3", lambda p, ref: p - ref, "this is k1"),
        ("k3", lambda p, ref: ((ref - p).exp() - 1 - (ref - p)).mean(), "no mean, no sum"),
        ("k3", lambda p, ref: ((ref - p).exp() - 1 - (ref - p)).detach(), "no gradient reaches log_probs"),
        ("k3", lambda p, ref: (ref - p).exp().detach() - 1 - (ref - p), "the values are right, the gradient"),
        ("k3", lambda p, ref: (ref - p).exp() - 1 - (ref - p), "mask before exp"),
        ("k1", lambda p, ref: ref - p, "sign swapped"),
        ("k1", lambda p, ref: (ref - p).exp() - 1 - (ref - p), "the setting is not used"),
        ("k2", lambda p, ref: (ref - p) ** 2, "the half is missing"),
    ],
)
def test_kl(estimator, wrong, expected):
    diagnose("compute_kl", kl_where(estimator, wrong), expected)


def test_kl_without_a_mask_or_a_fixed_reference():
    unmasked = replaced("compute_kl", lambda *a, mask=None, **k: mask is not None, lambda p, ref, mask: p * 0 + 1)
    diagnose("compute_kl", unmasked, "0 where it is False")
    diagnose("compute_kl", lambda p, ref, e="k3", mask=None: (ref - p).exp() - 1 - (ref - p), "Detach ref_log_probs")


# ---- the step ----------------------------------------------------------------------------------------------------


def step(
    *,
    mask=lambda m, labels: m,
    to_advantages=None,
    aggregate=None,
    share=lambda loss, steps: loss / steps,
    sign=1,
    zero_in_loop=False,
    zero=True,
    clip=torch.nn.utils.clip_grad_norm_,
    clip_in_loop=False,
    steps_in_loop=False,
    step_at_all=True,
    advantages_in_loop=False,
    use_old=True,
    slice_old=True,
    report=lambda total, steps: total,
):
    """A training step written as in the assignment, with one thing done wrong."""

    def function(
        model, tokenizer, optimizer, steps, limit, reward_fn, prompts, responses, truths, group_size, baseline="mean",
        advantage_eps=1e-6, advantage_normalizer="std", importance_reweighting_method="none", old_log_probs=None,
        cliprange=None, loss_normalization="sequence", normalization_constant=None,
    ):  # fmt: skip
        raw, _ = grpo.compute_rollout_rewards(reward_fn, responses, truths)
        raw = raw.double()

        def scale(raw, size):
            if to_advantages:
                return to_advantages(raw.view(-1, size)).reshape(-1)
            return grpo.compute_group_normalized_rewards(raw, size, baseline, advantage_eps, advantage_normalizer)[0]

        batch = grpo.tokenize_prompt_and_output(prompts, responses, tokenizer)
        response_mask = mask(batch["response_mask"], batch["labels"])
        size, total = len(prompts) // steps, 0.0
        scaled = scale(raw, group_size)
        if zero:
            optimizer.zero_grad()
        for i in range(0, len(prompts), size):
            rows = slice(i, i + size)
            if zero_in_loop:
                optimizer.zero_grad()
            a = scale(raw[rows], min(size, group_size)) if advantages_in_loop else scaled[rows]
            found = grpo.get_response_log_probs(model, batch["input_ids"][rows], batch["labels"][rows])["log_probs"]
            method = importance_reweighting_method if use_old else "none"
            old = None if old_log_probs is None else old_log_probs[rows if slice_old else slice(0, size)]
            per_token, _ = grpo.compute_policy_gradient_loss(a, found, method, old, cliprange)
            if aggregate:
                loss = aggregate(per_token, response_mask[rows])
            else:
                loss = grpo.aggregate_loss_across_microbatch(
                    per_token, response_mask[rows], loss_normalization, normalization_constant
                )
            divide = share if loss_normalization == "sequence" else (lambda loss, steps: loss)
            loss = sign * divide(loss, steps)
            loss.backward()
            total += loss.item()
            if limit and clip_in_loop:
                clip(model.parameters(), limit)
            if steps_in_loop:
                optimizer.step()
        if limit and not clip_in_loop and clip:
            clip(model.parameters(), limit)
        if step_at_all and not steps_in_loop:
            optimizer.step()
        return report(total, steps), {}

    return function


def test_a_step_written_another_way_is_right():
    assert CORE_CHECKS["grpo_train_step"](step()).startswith("Right")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"step_at_all": False}, "optimizer step missed"),
        ({"sign": -1}, "wrong sign of the loss"),
        ({"mask": lambda m, labels: torch.ones_like(m) & (labels != 0)}, "prompt tokens are trained on"),
        ({"mask": lambda m, labels: m & m.roll(1, 1)}, "the first token of each response is not trained on"),
        ({"mask": lambda m, labels: m & (labels != 1)}, "the eos is lost"),
        ({"aggregate": lambda x, m: (x * m).sum() / m.sum()}, "mean over all tokens"),
        ({"aggregate": lambda x, m: (x * m).mean()}, "padding is counted"),
        ({"to_advantages": lambda r: (r - r.mean()) / r.std()}, "mean and std over the batch"),
        ({"to_advantages": lambda r: (r - mean(r)) / r.std()}, "std over the batch"),
        ({"to_advantages": lambda r: r}, "raw rewards are used"),
        ({"to_advantages": lambda r: r - mean(r)}, "not divided by the group's std"),
        ({"to_advantages": lambda r: r * 0}, "nothing moves"),
        ({"share": lambda loss, steps: loss}, "gradient accumulation is not divided"),
        ({"share": lambda loss, steps: loss / steps**2}, "the loss is divided by 2 twice"),
        ({"zero_in_loop": True}, "only the last microbatch counts"),
        ({"steps_in_loop": True}, "optimizer.step() is called 2 times"),
        ({"advantages_in_loop": True}, "advantages are computed in each microbatch"),
        ({"report": lambda total, steps: total * steps}, "the sum over microbatches"),
        ({"clip": None}, "gradient not clipped"),
        ({"clip": torch.nn.utils.clip_grad_value_}, "clip its *norm*"),
        ({"clip_in_loop": True}, "you clip each microbatch"),
        ({"zero": False}, "the gradient of the step before is still there"),
        ({"use_old": False}, "old_log_probs are not used"),
        ({"slice_old": False}, "are old_log_probs cut like the rows?"),
    ],
)
def test_train_step(settings, expected):
    diagnose("grpo_train_step", step(**settings), expected)


def test_train_step_settings_not_passed_on():
    @functools.wraps(grpo.grpo_train_step)
    def function(*args, loss_normalization="sequence", normalization_constant=None, **kwargs):
        return grpo.grpo_train_step(*args, **kwargs)

    diagnose("grpo_train_step", function, "With loss_normalization='constant'")


# ---- the command -------------------------------------------------------------------------------------------------

LEARNERS_FILE = """
import os
from grpo import compute_rollout_rewards
print("x" * 1_000_000)

def get_response_log_probs(model, input_ids, labels, return_token_entropy=False):
    os._exit(3)

def compute_kl(log_probs, ref_log_probs, estimator="k3", mask=None):
    print("y" * 1_000_000)
    d = log_probs - ref_log_probs
    return d.exp() - 1 - d

def aggregate_loss_across_microbatch(loss, mask, loss_normalization="sequence", normalization_constant=None):
    mask = mask.bool()
    loss = loss.masked_fill(~mask, 0)
    if loss_normalization == "constant":
        return loss.sum() / normalization_constant
    if loss_normalization == "token":
        return loss.sum() / mask.sum()
    return (loss.sum(1) / mask.sum(1).clamp(min=1)).mean()

def r1_zero_reward_fn(response, ground_truth):
    return int(response)

def grpo_train_step(*args, **kwargs):
    while True:
        pass
"""


def test_a_file_that_crashes_raises_hangs_and_prints(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(LEARNERS_FILE)
    assert main(["check", str(file), "--seconds", "2"]) == 1
    out = capsys.readouterr().out
    lines = dict(line.split(": ", 1) for line in out.splitlines() if ": " in line)
    assert list(lines) == list(CORE_CHECKS)
    assert lines["tokenize_prompt_and_output"].startswith("Not there")
    assert lines["compute_rollout_rewards"].startswith("Not there: this is grpo's own")
    assert lines["get_response_log_probs"] == "This ended the whole process (exit status 3)."
    assert "k3 sign swapped" in lines["compute_kl"]
    assert lines["aggregate_loss_across_microbatch"].startswith("Right: ")
    assert "stopped with ValueError: invalid literal" in lines["r1_zero_reward_fn"]
    assert "return int(response)" in lines["r1_zero_reward_fn"]
    assert lines["grpo_train_step"].startswith("Stopped: this did not end within 2 s.")
    assert "1 right, 4 wrong, 5 not there" in out
    assert len(out) < 3000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "x = 1\nassert x == 2, 'no'",
            "importing your code: Stopped while it was imported: AssertionError: no (line 2: ",
        ),
        ("while True: pass", "importing your code: Stopped: this did not end within 1 s"),
    ],
)
def test_a_file_that_cannot_be_imported(text, expected, tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(text)
    assert main(["check", str(file), "--seconds", "1"]) == 1
    assert expected in capsys.readouterr().out


def test_what_is_not_there_is_bad_input(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in (["mine.py"], ["no_such_module_of_mine"], ["not/a/module"], [], ["grpo", "--seconds", "0"]):
        assert main(["check", *arguments]) == 2
        assert "grpo: error: " in capsys.readouterr().err


def test_exit_status_follows_the_verdicts(capsys, monkeypatch):
    verdicts = {"right": 0, "wrong": 1, "absent": 1}
    for verdict, status in verdicts.items():
        monkeypatch.setattr(
            command, "run_checks", lambda *a, v=verdict: [("compute_kl", v, "..."), ("x", "absent", "")]
        )
        assert main(["check", "grpo"]) == status
    monkeypatch.setattr(command, "run_checks", lambda *a: [("a", "right", ""), ("b", "wrong", "")])
    assert main(["check", "grpo"]) == 1


def test_a_module_by_name_and_a_dataclass_in_a_file(tmp_path, monkeypatch):
    assert judge(load("grpo"), "compute_kl")[0] == "right"
    file = tmp_path / "with_dataclass.py"
    file.write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert judge(load(str(file)), "compute_kl")[0] == "absent"


def test_list_names_every_exercise(capsys):
    assert main(["check", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 27
    assert all(len(line.split()) > 4 for line in lines)
    assert any(line.startswith("notebook 03  check_leave_one_out ") for line in lines)
    assert [line.split()[2] for line in lines if line.startswith("grpo check")] == list(CORE_CHECKS)
