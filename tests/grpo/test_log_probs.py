"""Log-probs and entropies against sums written out over the vocabulary."""

import doctest
import math
from types import SimpleNamespace

import pytest
import torch
from dummies import VOCABULARY, ConstantModel, DummyModel, DummyTokenizer, row_log_probs
from torch import nn

import grpo.log_probs
from grpo.log_probs import get_response_log_probs, log_probs_in_batches, response_ends, response_entropies
from grpo.tokenization import tokenize_prompt_and_output


@pytest.fixture
def batch():
    return tokenize_prompt_and_output(["ca", "d", "cc"], ["dcd$", "c", ""], DummyTokenizer())


def test_log_probs_are_those_of_each_row_alone(batch):
    model = DummyModel()
    log_probs = get_response_log_probs(model, batch["input_ids"], batch["labels"])["log_probs"]
    assert log_probs.shape == batch["labels"].shape
    assert log_probs.dtype == torch.float64
    expected = [row_log_probs(model, [5, 3], [6, 5, 6, 1]), row_log_probs(model, [6], [5])]
    for i, row in enumerate(expected):
        torch.testing.assert_close(log_probs[i][batch["response_mask"][i]], row, rtol=1e-12, atol=0)


def test_right_padding_changes_nothing(batch):
    model = DummyModel()
    wide = get_response_log_probs(model, batch["input_ids"], batch["labels"])["log_probs"]
    narrow = get_response_log_probs(model, batch["input_ids"][1:2, :1], batch["labels"][1:2, :1])["log_probs"]
    torch.testing.assert_close(wide[1:2, :1], narrow, rtol=1e-12, atol=0)


def test_probabilities_of_all_labels_sum_to_one():
    model, ids = DummyModel(), torch.full((VOCABULARY, 3), 4)
    labels = torch.arange(VOCABULARY).unsqueeze(1).expand(-1, 3)
    log_probs = get_response_log_probs(model, ids, labels)["log_probs"]
    torch.testing.assert_close(log_probs.exp().sum(dim=0), torch.ones(3, dtype=torch.float64))


def test_entropy_by_hand():
    # a coin: -(3/4 log 3/4 + 1/4 log 1/4); two choices of eight at -inf do not matter
    logits = [math.log(3), 0.0] + [-math.inf] * 6
    ids = torch.zeros(2, 3, dtype=torch.long)
    result = get_response_log_probs(ConstantModel(logits), ids, ids, return_token_entropy=True)
    expected = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    torch.testing.assert_close(result["token_entropy"], torch.full((2, 3), expected, dtype=torch.float64))
    torch.testing.assert_close(result["log_probs"], torch.full((2, 3), math.log(0.75), dtype=torch.float64))
    assert not result["token_entropy"].requires_grad
    uniform = get_response_log_probs(ConstantModel(), ids, ids, return_token_entropy=True)["token_entropy"]
    torch.testing.assert_close(uniform, torch.full((2, 3), math.log(VOCABULARY), dtype=torch.float64))


def test_entropy_only_on_request():
    ids = torch.zeros(2, 3, dtype=torch.long)
    assert set(get_response_log_probs(ConstantModel(), ids, ids)) == {"log_probs"}
    assert set(get_response_log_probs(ConstantModel(), ids, ids, True)) == {"log_probs", "token_entropy"}


def test_fact_11_temperature_divides_the_logits():
    # logits 0 and 2 at temperature 2 are logits 0 and 1: p = e / (1 + e)
    ids = torch.tensor([[1]])
    model = ConstantModel([0.0, 2.0])
    result = get_response_log_probs(model, ids, ids, True, temperature=2.0)
    p = math.e / (1 + math.e)
    assert result["log_probs"].item() == pytest.approx(math.log(p), rel=1e-12)
    assert result["token_entropy"].item() == pytest.approx(-p * math.log(p) - (1 - p) * math.log(1 - p), rel=1e-12)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan, math.inf])
def test_a_temperature_that_is_no_divisor_is_refused(temperature):
    ids, model = torch.zeros(1, 1, dtype=torch.long), DummyModel()
    with pytest.raises(ValueError, match=r"temperature=.*above 0"):
        get_response_log_probs(model, ids, ids, temperature=temperature)
    assert not model.calls


def test_half_precision_logits_are_scored_in_float32():
    class Half(nn.Module):
        def forward(self, ids):
            return SimpleNamespace(logits=torch.arange(2.0).expand(*ids.shape, -1).to(torch.bfloat16))

    ids = torch.ones(1, 1, dtype=torch.long)
    result = get_response_log_probs(Half(), ids, ids, True)
    assert result["log_probs"].dtype == result["token_entropy"].dtype == torch.float32
    assert result["log_probs"].item() == pytest.approx(1 - math.log(1 + math.e), rel=1e-6)


def test_shapes_that_differ_are_refused():
    model = DummyModel()
    with pytest.raises(ValueError, match=r"input_ids has shape \(2, 3\), labels \(2, 4\).*\(N, T\)"):
        get_response_log_probs(model, torch.zeros(2, 3).long(), torch.zeros(2, 4).long())
    assert not model.calls


def test_rows_longer_than_the_context_are_refused():
    model, ids = DummyModel(context=4), torch.zeros(1, 5, dtype=torch.long)
    with pytest.raises(ValueError, match=r"input_ids is 5 tokens long; the model's context holds 4"):
        get_response_log_probs(model, ids, ids)
    assert not model.calls
    get_response_log_probs(model, ids[:, :4], ids[:, :4])


def test_response_ends_by_hand():
    mask = torch.tensor([[0, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 1]]).bool()
    assert response_ends(mask).tolist() == [3, 0, 4]


@pytest.mark.parametrize("rows_at_once", [1, 2, 3, 7])
def test_log_probs_in_batches_are_the_same_and_zero_where_masked(batch, rows_at_once):
    model = DummyModel()
    whole = get_response_log_probs(model, batch["input_ids"], batch["labels"], temperature=0.7)["log_probs"]
    parts = log_probs_in_batches(model, batch, rows_at_once, temperature=0.7)
    assert not parts.requires_grad
    assert parts.dtype == torch.float64
    torch.testing.assert_close(parts, whole.detach() * batch["response_mask"], rtol=1e-12, atol=0)


def test_docstring_examples():
    assert doctest.testmod(grpo.log_probs).failed == 0


def test_entropies_of_each_response_token(batch):
    """Of three responses, "dcd$", "c" and "": the sum over the vocabulary at each place that a token was sampled from."""
    model = DummyModel()
    expected = []
    for i in range(3):
        log_p = model(batch["input_ids"][i : i + 1]).logits[0].double().log_softmax(-1)
        entropies = -(log_p.exp() * log_p).sum(-1)
        expected.append(entropies[batch["response_mask"][i].bool()].tolist())
    assert [len(row) for row in expected] == [4, 1, 0]
    measured = response_entropies(model, batch)
    assert [len(row) for row in measured] == [4, 1, 0]
    for a, b in zip(measured, expected, strict=True):
        assert a == pytest.approx(b, rel=1e-12)


def test_entropies_at_the_sampling_temperature(batch):
    assert sum(map(sum, response_entropies(DummyModel(), batch, temperature=100.0))) == pytest.approx(
        5 * math.log(VOCABULARY), rel=1e-3
    )
