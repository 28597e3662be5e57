import pytest
import torch

from toyrl.checks.nb05 import check_clipped_loss, check_inner_steps, check_k3, epochs_for


def clipped(advantages, log_probs, old_log_probs, epsilon):
    ratio = (log_probs - old_log_probs).exp()
    return -torch.minimum(advantages * ratio, advantages * ratio.clamp(1 - epsilon, 1 + epsilon))


def with_ratio(ratio_of, choose=torch.minimum):
    def loss(advantages, log_probs, old_log_probs, epsilon):
        ratio = ratio_of(log_probs, old_log_probs)
        return -choose(advantages * ratio, advantages * ratio.clamp(1 - epsilon, 1 + epsilon))

    return loss


def true_ratio(log_probs, old):
    return (log_probs - old).exp()


def right_values_wrong_gradient(advantages, log_probs, old, epsilon):
    value = clipped(advantages, log_probs, old, epsilon)
    return value.detach() + log_probs - log_probs.detach()


CLIP_ANSWERS = {
    "stub": (lambda a, lp, old, e: None, "Not done yet"),
    "ellipsis": (lambda a, lp, old, e: ..., "Not done yet"),
    "not a tensor": (lambda a, lp, old, e: 0.5, "Return a tensor"),
    "mean": (lambda *args: clipped(*args).mean(), "without a mean or a sum"),
    "sign": (lambda *args: -clipped(*args), "The sign is turned round"),
    "no clip": (lambda a, lp, old, e: -a * true_ratio(lp, old), "Nothing is clipped"),
    "no minimum": (lambda a, lp, old, e: -a * true_ratio(lp, old).clamp(1 - e, 1 + e), "always take the clipped term"),
    "maximum": (with_ratio(true_ratio, torch.maximum), "better of the two terms"),
    "quotient": (with_ratio(lambda lp, old: lp / old), "log pi / log pi_old"),
    "no exp": (with_ratio(lambda lp, old: lp - old), "logarithm of the ratio"),
    "upside down": (with_ratio(lambda lp, old: true_ratio(old, lp)), "upside down"),
    "detached": (with_ratio(lambda lp, old: true_ratio(lp, old).detach()), "no gradient reaches log_probs"),
    "wrong and detached": (lambda a, lp, old, e: (a * old).detach(), "No gradient reaches log_probs"),
    "wrong gradient": (right_values_wrong_gradient, "the gradient is not"),
    "fixed epsilon": (lambda a, lp, old, e: clipped(a, lp, old, 0.2), "use the argument epsilon"),
    "half the range": (lambda a, lp, old, e: clipped(a, lp, old, e / 2), "your loss is -1.100; it should be -1.200"),
    "raises": (lambda a, lp, old: None, "stopped with TypeError"),
    "no function": (3, "the function itself"),
}


@pytest.mark.parametrize(("answer", "words"), CLIP_ANSWERS.values(), ids=CLIP_ANSWERS)
def test_wrong_clipped_losses_are_told_what_is_wrong(said, answer, words):
    printed = said(check_clipped_loss, answer)
    assert words in printed
    assert not printed.startswith("Right")


def clipped_by_maximum(advantages, log_probs, old_log_probs, epsilon):
    ratio = true_ratio(log_probs, old_log_probs)
    return torch.maximum(-advantages * ratio, -advantages * ratio.clip(1 - epsilon, 1 + epsilon))


@pytest.mark.parametrize("answer", [clipped, clipped_by_maximum])
def test_right_clipped_losses_pass(said, answer):
    assert said(check_clipped_loss, answer).startswith("Right")


K3_ANSWERS = {
    "stub with the error": (lambda lp, ref: (lp - ref).exp() - 1 - (lp - ref), "Which way round is d?"),
    "nothing": (lambda lp, ref: None, "Not done yet"),
    "not a tensor": (lambda lp, ref: 0.5, "Return a tensor"),
    "mean": (lambda lp, ref: ((ref - lp).exp() - 1 - (ref - lp)).mean(), "without a mean or a sum"),
    "plus d": (lambda lp, ref: (ref - lp).exp() - 1 + (ref - lp), "*subtracted*"),
    "one d turned": (lambda lp, ref: (lp - ref).exp() - 1 - (ref - lp), "must stand in both"),
    "negative": (lambda lp, ref: 1 + (ref - lp) - (ref - lp).exp(), "minus k3"),
    "k1": (lambda lp, ref: lp - ref, "This is k1"),
    "k2": (lambda lp, ref: (lp - ref) ** 2 / 2, "This is k2"),
    "no 1": (lambda lp, ref: (ref - lp).exp() - (ref - lp), "The 1 is missing"),
    "double": (lambda lp, ref: 2 * ((ref - lp).exp() - 1 - (ref - lp)), "Its mean over samples of the policy is"),
    "raises": (lambda lp: None, "stopped with TypeError"),
    "no function": (None, "the function itself"),
}


@pytest.mark.parametrize(("answer", "words"), K3_ANSWERS.values(), ids=K3_ANSWERS)
def test_wrong_k3_are_told_what_is_wrong(said, answer, words):
    printed = said(check_k3, answer)
    assert words in printed
    assert not printed.startswith("Right")


def test_right_k3_passes(said):
    assert said(check_k3, lambda lp, ref: (ref - lp).expm1() - (ref - lp)).startswith("Right")


INNER_STEPS = {
    "stub": (None, "Not done yet"),
    "a fraction": (2.5, "a whole number"),
    "zero": (0, "a whole number"),
    "beyond the budget": (10_000, "never finish an epoch"),
    "on-policy": (1, "Use each sample more often"),
    "still few": (4, "Use each sample more often"),
    "stale": (128, "Sample more often"),
}


@pytest.mark.parametrize(("answer", "words"), INNER_STEPS.values(), ids=INNER_STEPS)
def test_wrong_inner_steps_are_told_what_is_wrong(said, answer, words):
    printed = said(check_inner_steps, answer)
    assert words in printed
    assert not printed.startswith("Right")


@pytest.mark.parametrize("answer", [12, 16, 24])
def test_good_inner_steps_pass(said, answer):
    assert said(check_inner_steps, answer).startswith("Right")


def test_the_budget_pays_for_rollouts_and_updates():
    assert [epochs_for(k) for k in (1, 16, 128, 591)] == [54, 23, 4, 0]
