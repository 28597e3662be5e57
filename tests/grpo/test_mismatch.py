import math

import pytest
import torch

from grpo.mismatch import engine_log_probs, measure_mismatch, truncated_importance_weights

MASK = torch.tensor([[False, True, True], [False, True, False]])


def test_engine_log_probs_lie_where_the_response_tokens_do():
    assert engine_log_probs([[-1.0, -2.0], [-3.0]], MASK).tolist() == [[0, -1, -2], [0, -3, 0]]
    with pytest.raises(ValueError, match=r"rows\[1\] has 2 log-probs; expected 1"):
        engine_log_probs([[-1.0, -2.0], [-3.0, -4.0]], MASK)


def test_mismatch_by_hand():
    engine = torch.zeros(2, 3)
    trainer = torch.tensor([[50.0, 0.0, math.log(2)], [math.inf, -math.log(2), -200.0]])
    # w = 1, 2, 1/2 over the three response tokens: (3.5)^2 / (3 x 5.25)
    result = measure_mismatch(trainer, engine, MASK)
    assert result["engine_mismatch_mean"] == pytest.approx(2 * math.log(2) / 3, rel=1e-6)
    assert result["engine_mismatch_max"] == pytest.approx(math.log(2), rel=1e-6)
    assert result["engine_effective_sample_size"] == pytest.approx(12.25 / 15.75, rel=1e-6)


def test_mismatch_at_its_ends():
    same = torch.tensor([[0.0, -1.0, -2.0], [0.0, -3.0, 0.0]])
    assert measure_mismatch(same, same, MASK) == {
        "engine_mismatch_mean": 0.0,
        "engine_mismatch_max": 0.0,
        "engine_effective_sample_size": 1.0,
    }
    one_has_it_all = same + torch.tensor([[0.0, 2000.0, 0.0], [0.0, 0.0, 0.0]])  # exp would overflow
    assert measure_mismatch(one_has_it_all, same, MASK)["engine_effective_sample_size"] == pytest.approx(1 / 3)
    assert all(map(math.isnan, measure_mismatch(same, same, torch.zeros_like(MASK)).values()))


def test_truncated_weights_by_hand():
    trainer = torch.tensor([[math.nan, math.log(3), math.log(0.5)], [0.0, 1000.0, -math.inf]])
    weights = truncated_importance_weights(trainer, torch.zeros(2, 3), MASK, cap=2.0)
    torch.testing.assert_close(weights, torch.tensor([[1.0, 2.0, 0.5], [1.0, 2.0, 1.0]]))


@pytest.mark.parametrize("cap", [0.0, -1.0, math.inf, math.nan])
def test_a_cap_that_cannot_work(cap):
    with pytest.raises(ValueError, match="cap="):
        truncated_importance_weights(torch.zeros(2, 3), torch.zeros(2, 3), MASK, cap)
