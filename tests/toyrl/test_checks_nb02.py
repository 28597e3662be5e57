import copy

import pytest
import torch

from toyrl.checks.nb02 import check_freeze, check_response_log_prob, check_sampler
from toyrl.policy import Policy


def tokens(log_probs, responses):
    return torch.stack([log_probs.gather(2, row.unsqueeze(2)).squeeze(2) for row in responses.unbind(dim=1)], dim=1)


def test_the_right_log_prob_passes(said):
    assert said(check_response_log_prob, lambda lp, y: tokens(lp, y).sum(dim=-1)).startswith("Right")
    assert said(check_response_log_prob, lambda lp, y: tokens(lp, y).exp().prod(dim=-1).log()).startswith("Right")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda lp, y: None, "Not done yet"),
        (lambda lp, y: tokens(lp, y).sum(dim=-1).tolist(), "return a tensor"),
        (tokens, "log of their product"),
        (lambda lp, y: tokens(lp, y).sum(dim=-1).exp(), "leave the exp out"),
        (lambda lp, y: tokens(lp, y).mean(dim=-1), "the mean over positions"),
        (lambda lp, y: tokens(lp, y).prod(dim=-1), "Probabilities multiply"),
        (lambda lp, y: tokens(lp, y).exp().sum(dim=-1), "added the probabilities"),
        (lambda lp, y: tokens(lp, y).sum(), "expected (p, g) = (2, 4)"),
        (lambda lp, y: tokens(lp[:1].expand_as(lp), y).sum(dim=-1), "at its own prompt and its own position"),
        (lambda lp, y: tokens(lp[:, :1].expand_as(lp), y).sum(dim=-1), "at its own prompt and its own position"),
        (lambda lp, y: tokens(lp, y).sum(dim=-1).detach(), "gradient is cut off"),
        (lambda lp, y: lp.gather(5, y), "IndexError"),
        (torch.zeros(2), "the function itself"),
    ],
)
def test_wrong_log_probs_are_told_why(said, answer, words):
    message = said(check_response_log_prob, answer)
    assert words in message
    assert not message.startswith("Right")


def count_below(probs, uniforms):
    return (uniforms.unsqueeze(-1) >= probs.cumsum(dim=-1)).sum(dim=-1)


def test_the_mended_sampler_passes(said):
    def mended(probs, uniforms):
        return count_below(probs, uniforms).clamp(max=probs.shape[1] - 1)

    assert said(check_sampler, mended).startswith("Right")


def test_a_sampler_of_ones_own_passes(said):
    def multinomial(probs, uniforms):
        generator = torch.Generator().manual_seed(5)
        return torch.multinomial(probs, len(uniforms), replacement=True, generator=generator).T

    assert said(check_sampler, multinomial).startswith("Right")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda probs, u: None, "Not done yet"),
        (lambda probs, u: count_below(probs, u[:, :1].expand_as(u)), "What do the positions share"),
        (lambda probs, u: count_below(probs[:1].expand_as(probs), u), "its probability is"),
        (lambda probs, u: probs.argmax(dim=-1).expand(len(u), -1), "in 100% of the samples"),
        (lambda probs, u: (u * probs.shape[1]).long(), "in 25% of the samples"),
        (lambda probs, u: count_below(probs, u) + 1, "the vocabulary has 0 to 3"),
        (lambda probs, u: count_below(probs, u).T, "expected tokens of that shape"),
        (count_below, "Rounding can leave the last"),
        (lambda probs, u: (u.unsqueeze(-1) > probs.cumsum(dim=-1)).sum(dim=-1).clamp(max=3), "can be exactly 0"),
        (lambda probs, u: probs @ u, "RuntimeError"),
    ],
)
def test_broken_samplers_are_told_their_symptom(said, answer, words):
    message = said(check_sampler, answer)
    assert words in message
    assert not message.startswith("Right")


def test_the_right_freeze_passes(said):
    assert said(check_freeze, Policy.frozen).startswith("Right")
    assert said(check_freeze, lambda p: Policy(*(q.clone().detach() for q in p.parameters()))).startswith("Right")


def freezes_the_learner(policy):
    for parameter in policy.parameters():
        parameter.requires_grad_(False)
    return policy.frozen()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda p: None, "Not done yet"),
        (lambda p: p, "under another name"),
        (lambda p: p.parameters(), "return Policy"),
        (lambda p: Policy(*(q.detach() for q in p.parameters())), "shares the policy's memory"),
        (
            lambda p: Policy(*(q.clone() for q in p.parameters())),
            "largest entry of the gradient of pi / pi_old is 0.0000",
        ),
        (lambda p: Policy(*p.parameters()), "shares the policy's memory"),
        (copy.copy, "shares the policy's memory"),
        (copy.deepcopy, "still asks for gradients"),
        (lambda p: Policy(*(torch.zeros_like(q) for q in p.parameters())), "The copy differs"),
        (lambda p: Policy(p.embedding.detach().clone(), p.decode, p.encode), "The copy differs"),
        (freezes_the_learner, "froze the one that should learn"),
        (lambda p: p.numpy(), "AttributeError"),
    ],
)
def test_wrong_freezes_are_told_why(said, answer, words):
    message = said(check_freeze, answer)
    assert words in message
    assert not message.startswith("Right")
