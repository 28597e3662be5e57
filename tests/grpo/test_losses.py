"""Losses: the formulas of design.md section 3 by hand, masks, clip boundaries, and the KL estimators' expectations."""

import doctest
import math

import pytest
import torch
from dummies import DummyTokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

import grpo.losses
from grpo.losses import aggregate_loss_across_microbatch, compute_kl, compute_policy_gradient_loss
from grpo.tokenization import tokenize_prompt_and_output

METHODS = ["none", "noclip", "grpo", "gspo", "cispo"]
A = [2.0, -3.0]
RATIOS = [[1.0, 1.5, 0.5], [1.1, 2.0, 0.25]]  # w = pi / pi_old
LOG_PI = [[-1.0, -2.0, -0.5], [-3.0, -0.1, -1.5]]


def f64(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def loss_and_gradient(method, cliprange=0.2, mask=None, ratios=RATIOS, advantages=A):
    """(per-token loss, d sum(loss) / d log pi, metadata) for the numbers above."""
    log_pi = f64(LOG_PI).requires_grad_()
    old = f64(LOG_PI) - f64(ratios).log()
    loss, metadata = compute_policy_gradient_loss(f64(advantages), log_pi, method, old, cliprange, mask)
    (gradient,) = torch.autograd.grad(loss.sum(), log_pi)
    return loss.detach(), gradient, metadata


def test_none_by_hand():
    log_pi = f64(LOG_PI).requires_grad_()
    loss, metadata = compute_policy_gradient_loss(f64(A), log_pi)
    torch.testing.assert_close(loss, f64([[2.0, 4.0, 1.0], [-9.0, -0.3, -4.5]]))
    (gradient,) = torch.autograd.grad(loss.sum(), log_pi)
    torch.testing.assert_close(gradient, f64([[-2.0] * 3, [3.0] * 3]))
    assert metadata == {"clip_fraction": 0.0, "ratio_mean": 1.0, "ratio_max": 1.0, "approx_kl": 0.0}


def test_fact_1_the_ratio_is_exp_of_a_difference():
    loss, gradient, metadata = loss_and_gradient("noclip", cliprange=None)
    expected = f64([[-2.0, -3.0, -1.0], [3.3, 6.0, 0.75]])  # -A w, which is its own gradient
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, expected)
    assert metadata["ratio_mean"] == pytest.approx(sum(map(sum, RATIOS)) / 6)
    assert metadata["ratio_max"] == pytest.approx(2.0)
    assert metadata["clip_fraction"] == 0.0
    assert metadata["approx_kl"] == pytest.approx(sum(w - 1 - math.log(w) for row in RATIOS for w in row) / 6)


def test_fact_1_a_good_action_becomes_more_likely():
    # the quotient log pi / log pi_old would push the other way: its gradient is +A / |log pi_old|
    for method in METHODS:
        log_pi = f64([[-1.0]]).requires_grad_()
        loss, _ = compute_policy_gradient_loss(f64([1.0]), log_pi, method, f64([[-1.0]]), 0.2)
        loss.sum().backward()
        assert log_pi.grad.item() == pytest.approx(-1.0), method


def test_grpo_by_hand():
    # A > 0: the ratio counts up to 1.2. A < 0: it counts down to 0.8.
    loss, gradient, metadata = loss_and_gradient("grpo", 0.2)
    torch.testing.assert_close(loss, f64([[-2.0, -2.4, -1.0], [3.3, 6.0, 2.4]]))
    torch.testing.assert_close(gradient, f64([[-2.0, 0.0, -1.0], [3.3, 6.0, 0.0]]))
    assert metadata["clip_fraction"] == pytest.approx(2 / 6)


def test_clip_higher_by_hand():
    loss, gradient, metadata = loss_and_gradient("grpo", (0.8, 0.6))
    torch.testing.assert_close(loss, f64([[-2.0, -3.0, -1.0], [3.3, 6.0, 0.75]]))
    torch.testing.assert_close(gradient, loss)
    assert metadata["clip_fraction"] == 0.0
    loss, gradient, _ = loss_and_gradient("grpo", (0.1, 0.6))
    assert loss[1, 2].item() == pytest.approx(3 * 0.9)
    assert gradient[1, 2].item() == 0.0
    assert gradient[0, 1].item() == pytest.approx(-3.0)


def test_gspo_by_hand():
    # the geometric mean of a row's ratios at every position
    s = [(1.0 * 1.5 * 0.5) ** (1 / 3), (1.1 * 2.0 * 0.25) ** (1 / 3)]
    loss, gradient, metadata = loss_and_gradient("gspo", 0.5)
    torch.testing.assert_close(loss, f64([[-2 * s[0]] * 3, [3 * s[1]] * 3]))
    torch.testing.assert_close(gradient, loss)  # three positions, a third of d s / d log pi = s each
    assert metadata["clip_fraction"] == 0.0
    assert metadata["ratio_mean"] == pytest.approx((s[0] + s[1]) / 2)
    assert metadata["ratio_max"] == pytest.approx(max(s))
    # s[1] = 0.82 with A < 0: clipped from below at 0.9, and every token of the row loses its gradient
    loss, gradient, metadata = loss_and_gradient("gspo", 0.1)
    torch.testing.assert_close(loss[1], f64([2.7] * 3))
    assert gradient[1].tolist() == [0.0] * 3
    assert gradient[0].tolist() != [0.0] * 3
    assert metadata["clip_fraction"] == pytest.approx(0.5)


def test_gspo_has_the_same_value_at_masked_positions_too():
    mask = torch.tensor([[True, True, False], [False, False, False]])
    loss, gradient, metadata = loss_and_gradient("gspo", 0.5, mask)
    s = math.sqrt(1.0 * 1.5)
    torch.testing.assert_close(loss, f64([[-2 * s] * 3, [3.0] * 3]))
    torch.testing.assert_close(gradient, f64([[-2 * s * 3 / 2] * 2 + [0.0], [0.0] * 3]))
    assert metadata["ratio_mean"] == pytest.approx(s)


def test_cispo_by_hand():
    loss, gradient, metadata = loss_and_gradient("cispo", 0.2)
    weights = f64([[1.0, 1.2, 0.5], [1.1, 1.2, 0.25]])  # min(w, 1.2), whatever the sign of A; no lower side
    torch.testing.assert_close(loss, -f64(A).unsqueeze(1) * weights * f64(LOG_PI))
    torch.testing.assert_close(gradient, -f64(A).unsqueeze(1) * weights)
    assert metadata["clip_fraction"] == 0.0  # the weight is capped, no gradient is removed
    assert metadata["capped_fraction"] == pytest.approx(2 / 6)


def test_cispo_uses_the_upper_side():
    _, gradient, _ = loss_and_gradient("cispo", (0.2, 0.6))
    assert gradient[0, 1].item() == pytest.approx(-2 * 1.5)
    assert gradient[1, 1].item() == pytest.approx(3 * 1.6)


@pytest.mark.parametrize("method", ["grpo", "gspo"])
def test_a_range_that_nothing_leaves_is_no_clipping(method):
    wide, _, metadata = loss_and_gradient(method, 1e3)
    assert metadata["clip_fraction"] == 0.0
    if method == "grpo":
        assert torch.equal(wide, loss_and_gradient("noclip")[0])


def test_cispo_may_cap_above_two():
    _, gradient, _ = loss_and_gradient("cispo", 4.0, ratios=[[6.0, 4.5, 1.0], [1.0, 1.0, 1.0]])
    torch.testing.assert_close(gradient[0], f64([-10.0, -9.0, -2.0]))


def test_unused_arguments_are_ignored():
    plain, _ = compute_policy_gradient_loss(f64(A), f64(LOG_PI))
    with_all, _ = compute_policy_gradient_loss(f64(A), f64(LOG_PI), "none", f64(LOG_PI) - 1, -5.0)
    assert torch.equal(plain, with_all)
    assert torch.equal(loss_and_gradient("noclip", None)[0], loss_and_gradient("noclip", "nonsense")[0])


def test_a_column_of_advantages_is_the_same():
    for method in METHODS:
        old = f64(LOG_PI) - f64(RATIOS).log()
        row, _ = compute_policy_gradient_loss(f64(A), f64(LOG_PI), method, old, 0.2)
        column, _ = compute_policy_gradient_loss(f64(A).unsqueeze(1), f64(LOG_PI), method, old, 0.2)
        assert row.shape == (2, 3)
        assert torch.equal(row, column)


def test_no_gradient_into_advantages_and_old_log_probs():
    advantages, log_pi, old = (f64(x).requires_grad_() for x in (A, LOG_PI, LOG_PI))
    for method in METHODS:
        loss, _ = compute_policy_gradient_loss(advantages, log_pi, method, old, 0.2)
        loss.sum().backward()
    assert advantages.grad is None
    assert old.grad is None
    assert log_pi.grad is not None


def test_signs_of_log_probs_are_not_checked():
    loss, _ = compute_policy_gradient_loss(f64([1.0]), f64([[3.0]]))
    assert loss.item() == -3.0


@pytest.mark.parametrize("junk", [-200.0, 200.0, -1e4, math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("where", ["old", "policy", "both"])
def test_fact_5_masked_positions_never_reach_the_gradient(method, junk, where):
    mask = torch.tensor([[True, False, True], [False, True, True]])
    results = []
    for value in (-1.0, junk):
        policy, old = f64(LOG_PI), f64(LOG_PI) - f64(RATIOS).log()
        old = old.masked_fill(~mask, value if where in {"old", "both"} else -1.0)
        policy = policy.masked_fill(~mask, value if where in {"policy", "both"} else -1.0).requires_grad_()
        per_token, metadata = compute_policy_gradient_loss(f64(A), policy, method, old, 0.2, mask)
        loss = sum(
            aggregate_loss_across_microbatch(per_token, mask, how, 7.0) for how in ("sequence", "constant", "token")
        )
        (gradient,) = torch.autograd.grad(loss, policy)
        results.append((loss.item(), gradient, metadata))
    clean, dirty = results
    assert dirty[0] == clean[0]
    assert torch.equal(dirty[1], clean[1])
    assert dirty[1][~mask].tolist() == [0.0, 0.0]
    assert (dirty[1][mask] != 0).any()
    assert dirty[2] == clean[2]


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("junk", [-200.0, 1e4, math.inf, -math.inf, math.nan])
def test_fact_5_masked_positions_never_reach_the_kl(estimator, junk):
    mask = torch.tensor([[True, False]])
    for policy_junk, ref_junk in ((junk, -1.0), (-1.0, junk), (junk, junk)):
        log_pi = f64([[-1.0, policy_junk]]).requires_grad_()
        kl = compute_kl(log_pi, f64([[-2.0, ref_junk]]), estimator, mask)
        (gradient,) = torch.autograd.grad(kl.sum(), log_pi)
        assert kl[0, 1].item() == 0.0
        assert gradient[0, 1].item() == 0.0
        assert math.isfinite(gradient[0, 0].item())
        assert gradient[0, 0].item() != 0.0


def test_fact_9_the_sampled_eos_is_in_the_loss_and_the_padding_is_not():
    batch = tokenize_prompt_and_output(["c", "c"], ["d$", "ddd$"], DummyTokenizer(pad_token="$"))
    log_pi = torch.full((2, 4), -1.0, dtype=torch.float64, requires_grad=True)
    per_token, _ = compute_policy_gradient_loss(f64([1.0, 1.0]), log_pi, response_mask=batch["response_mask"])
    aggregate_loss_across_microbatch(per_token, batch["response_mask"], "constant", 1.0).backward()
    assert log_pi.grad.tolist() == [[-1.0, -1.0, 0.0, 0.0], [-1.0] * 4]


PER_TOKEN = [[1.0] + [100.0] * 8, [2.0] * 9]
MASK = torch.tensor([[True] + [False] * 8, [True] * 9])


@pytest.mark.parametrize(
    ("normalization", "constant", "expected"),
    [("sequence", None, 1.5), ("token", None, 1.9), ("constant", 10.0, 1.9), ("constant", 2, 9.5)],
)
def test_fact_7_aggregation_by_hand(normalization, constant, expected):
    loss = aggregate_loss_across_microbatch(f64(PER_TOKEN), MASK, normalization, constant)
    assert loss.shape == ()
    assert loss.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("normalization", "expected"), [("sequence", 1.0), ("token", 1.9), ("constant", 1.9)])
def test_fact_6_a_row_without_response_tokens_contributes_zero(normalization, expected):
    per_token = f64([*PER_TOKEN, [math.nan] * 9]).requires_grad_()
    mask = torch.cat([MASK, torch.zeros(1, 9, dtype=torch.bool)])
    loss = aggregate_loss_across_microbatch(per_token, mask, normalization, 10.0)
    assert loss.item() == pytest.approx(expected, rel=1e-12)  # sequence: (1 + 2 + 0) / 3 rows
    (gradient,) = torch.autograd.grad(loss, per_token)
    assert gradient[2].tolist() == [0.0] * 9
    share = {"sequence": [1 / 3, 1 / 27], "token": [0.1, 0.1], "constant": [0.1, 0.1]}[normalization]
    assert gradient[:2, 0].tolist() == pytest.approx(share)


@pytest.mark.parametrize("normalization", ["sequence", "token", "constant"])
def test_fact_6_no_response_token_at_all_is_a_loss_of_zero(normalization):
    per_token = f64([[math.nan, math.inf]]).requires_grad_()
    loss = aggregate_loss_across_microbatch(per_token, torch.zeros(1, 2, dtype=torch.bool), normalization, 10.0)
    assert loss.item() == 0.0
    assert torch.autograd.grad(loss, per_token)[0].tolist() == [[0.0, 0.0]]


def test_metadata_without_response_tokens_is_nan_and_nothing_breaks():
    loss, metadata = compute_policy_gradient_loss(
        f64(A), f64(LOG_PI), "grpo", f64(LOG_PI), 0.2, torch.zeros(2, 3, dtype=torch.bool)
    )
    assert torch.isfinite(loss).all()
    assert all(math.isnan(value) for value in metadata.values())


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=6),
    st.sampled_from([-1.5, -0.2, 0.0, 0.2, 1.5]),
    st.integers(0, 9),
    st.integers(0, 30),
)
def test_clip_fraction_counts_the_tokens_without_gradient(ratios, advantage, lower, upper):
    # tenths, and sides between two of them: on an edge, or with A = 1e-320, rounding decides what counts as clipped
    ratios, lower, upper = [r / 10 for r in ratios], lower / 10 + 0.05, upper / 10 + 0.05
    log_pi = torch.full((1, len(ratios)), -1.0, dtype=torch.float64, requires_grad=True)
    old = -1.0 - f64([ratios]).log()
    loss, metadata = compute_policy_gradient_loss(f64([advantage]), log_pi, "grpo", old, (lower, upper))
    (gradient,) = torch.autograd.grad(loss.sum(), log_pi)
    removed = (gradient == 0).double().mean().item() if advantage else 0.0
    assert metadata["clip_fraction"] == pytest.approx(removed)
    # pessimistic: never less than the unclipped loss
    assert (loss >= -advantage * f64([ratios]) - 1e-12).all()


# KL estimators ----------------------------------------------------------------------------------------------------

THETA = [0.3, -0.8, 1.1]
REF = [0.7, 0.2, 0.1]


def exact_kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (p * (p.log() - q.log())).sum()


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_fact_14_expectations(estimator):
    p, q = f64(THETA).softmax(0), f64(REF)
    expectation = (p * compute_kl(p.log()[None], q.log()[None], estimator)[0]).sum().item()
    kl = exact_kl(p, q).item()
    if estimator == "k2":
        assert abs(expectation / kl - 1) > 0.05  # biased
        assert expectation == pytest.approx(sum(a * math.log(a / b) ** 2 / 2 for a, b in zip(p, q, strict=True)))
    else:
        assert expectation == pytest.approx(kl, rel=1e-12)
        assert kl > 0.1


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_fact_14_expected_gradients(estimator):
    """Samples of pi are fixed: the expectation's weights carry no gradient."""
    theta = f64(THETA).requires_grad_()
    log_p, q = theta.log_softmax(0), f64(REF)
    loss = (log_p.detach().exp() * compute_kl(log_p[None], q.log()[None], estimator)[0]).sum()
    (gradient,) = torch.autograd.grad(loss, theta, retain_graph=True)
    p = log_p.exp()
    forward, reverse = exact_kl(p, q), exact_kl(q, p)
    expected = {
        "k1": torch.zeros(3, dtype=torch.float64),
        "k2": torch.autograd.grad(forward, theta, retain_graph=True)[0],
        "k3": torch.autograd.grad(reverse, theta)[0],
    }
    torch.testing.assert_close(gradient, expected[estimator], rtol=1e-10, atol=1e-15)
    assert (expected["k2"] - expected["k3"]).norm() > 0.05  # the two are not the same


def test_kl_values_by_hand():
    log_pi, ref = f64([[-1.0, -2.0]]), f64([[-3.0, -1.5]])
    assert compute_kl(log_pi, ref, "k1").tolist() == [[2.0, -0.5]]
    assert compute_kl(log_pi, ref, "k2").tolist() == [[2.0, 0.125]]
    expected = [math.exp(-2.0) - 1 + 2.0, math.exp(0.5) - 1 - 0.5]
    assert compute_kl(log_pi, ref)[0].tolist() == pytest.approx(expected)  # k3 is the default
    assert (compute_kl(log_pi, ref, "k3") >= 0).all()
    mask = torch.tensor([[True, False]])
    assert compute_kl(log_pi, ref, "k1", mask).tolist() == [[2.0, 0.0]]


def test_no_gradient_into_the_reference():
    log_pi, ref = f64([[-1.0]]).requires_grad_(), f64([[-2.0]]).requires_grad_()
    for estimator in ("k1", "k2", "k3"):
        compute_kl(log_pi, ref, estimator).sum().backward()
    assert ref.grad is None


# Bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"importance_reweighting_method": "ppo"},
            r"importance_reweighting_method='ppo' is unknown.*'none', 'noclip', 'grpo', 'gspo', 'cispo'",
        ),
        ({"old_log_probs": None}, r"old_log_probs=None with importance_reweighting_method='grpo'"),
        ({"old_log_probs": torch.zeros(2, 4)}, r"old_log_probs has shape \(2, 4\); expected \(2, 3\)"),
        ({"old_log_probs": torch.zeros(3)}, r"old_log_probs has shape \(3,\); expected \(2, 3\)"),
        ({"response_mask": torch.ones(2, 2).bool()}, r"response_mask has shape \(2, 2\); expected \(2, 3\)"),
        ({"cliprange": None}, r"cliprange=None with importance_reweighting_method='grpo'"),
        ({"cliprange": -0.1}, r"cliprange=-0\.1 must be"),
        ({"cliprange": (0.1, 0.2, 0.3)}, r"cliprange=\(0\.1, 0\.2, 0\.3\) must be"),
        ({"cliprange": (0.1, math.nan)}, r"cliprange=\(0\.1, nan\) must be"),
        ({"raw_rewards_or_advantages": torch.zeros(3)}, r"raw_rewards_or_advantages has shape \(3,\); .*\(2,\)"),
        ({"raw_rewards_or_advantages": torch.zeros(2, 3)}, r"raw_rewards_or_advantages has shape \(2, 3\)"),
        ({"policy_log_probs": torch.zeros(6)}, r"policy_log_probs has shape \(6,\); expected \(N, T\)"),
    ],
)
def test_bad_arguments_of_the_loss_are_named(changes, message):
    arguments = {
        "raw_rewards_or_advantages": torch.zeros(2),
        "policy_log_probs": torch.zeros(2, 3),
        "importance_reweighting_method": "grpo",
        "old_log_probs": torch.zeros(2, 3),
        "cliprange": 0.2,
    }
    with pytest.raises(ValueError, match=message):
        compute_policy_gradient_loss(**(arguments | changes))


@pytest.mark.parametrize("method", ["noclip", "gspo", "cispo"])
def test_every_reweighting_needs_old_log_probs(method):
    with pytest.raises(ValueError, match=rf"old_log_probs=None with importance_reweighting_method='{method}'"):
        compute_policy_gradient_loss(torch.zeros(2), torch.zeros(2, 3), method, cliprange=0.2)


@pytest.mark.parametrize("method", ["grpo", "gspo", "cispo"])
def test_every_clip_needs_a_cliprange(method):
    with pytest.raises(ValueError, match=rf"cliprange=None with importance_reweighting_method='{method}'"):
        compute_policy_gradient_loss(torch.zeros(2), torch.zeros(2, 3), method, torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"loss_normalization": "mean"}, r"loss_normalization='mean' is unknown.*'sequence', 'constant', 'token'"),
        ({"loss_normalization": "constant"}, r"normalization_constant=None with loss_normalization='constant'"),
        ({"loss_normalization": "constant", "normalization_constant": 0}, r"normalization_constant=0 .*above 0"),
        ({"loss_normalization": "constant", "normalization_constant": math.inf}, r"normalization_constant=inf"),
        ({"mask": torch.ones(2, 3)}, r"mask has shape \(2, 3\); expected \(2, 9\)"),
    ],
)
def test_bad_arguments_of_the_aggregation_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        aggregate_loss_across_microbatch(f64(PER_TOKEN), **({"mask": MASK} | arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"estimator": "k4"}, r"estimator='k4' is unknown.*'k1', 'k2', 'k3'"),
        ({"ref_log_probs": torch.zeros(1, 3)}, r"ref_log_probs has shape \(1, 3\); expected \(1, 2\)"),
        ({"mask": torch.ones(2, 2)}, r"mask has shape \(2, 2\); expected \(1, 2\)"),
    ],
)
def test_bad_arguments_of_the_kl_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        compute_kl(**({"log_probs": torch.zeros(1, 2), "ref_log_probs": torch.zeros(1, 2)} | arguments))


def test_docstring_examples():
    results = doctest.testmod(grpo.losses)
    assert results.failed == 0
    assert results.attempted > 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("masked", [False, True])
def test_leaving_metadata_out_changes_neither_loss_nor_gradient(method, masked):
    torch.manual_seed(0)
    old, advantages = -torch.rand(6, 4), torch.randn(6)
    mask = (torch.rand(6, 4) < 0.7) if masked else None
    results = []
    for return_metadata in (True, False):
        log_probs = (old + torch.linspace(-0.6, 0.6, 24).reshape(6, 4)).requires_grad_()
        loss, metadata = compute_policy_gradient_loss(
            advantages, log_probs, method, old, 0.2, mask, return_metadata=return_metadata
        )
        assert bool(metadata) == return_metadata
        results.append((loss.detach(), torch.autograd.grad(loss.sum(), log_probs)[0]))
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


def test_half_precision_log_probs_are_worked_on_in_float32():
    half = torch.bfloat16
    log_pi, old = torch.tensor([[-0.5, -0.5]], dtype=half), torch.tensor([[-1.0, -0.25]], dtype=half)
    loss, metadata = compute_policy_gradient_loss(torch.tensor([1.0]), log_pi, "grpo", old, 0.3)
    assert loss.dtype == torch.float32
    # min(e^0.5, 1.3) = 1.3, which bfloat16 would round to 1.296875; e^-0.25 is within the range
    torch.testing.assert_close(loss, torch.tensor([[-1.3, -math.exp(-0.25)]]))
    assert metadata["ratio_max"] == pytest.approx(math.exp(0.5), rel=1e-6)
    per_token = torch.full((1, 3), 0.1, dtype=half)
    assert aggregate_loss_across_microbatch(per_token, torch.ones(1, 3)).dtype == torch.float32
    kl = compute_kl(log_pi, old, "k3")
    torch.testing.assert_close(kl, torch.tensor([[math.exp(-0.5) - 0.5, math.exp(0.25) - 1.25]]))


def test_masked_mean_takes_a_mask_of_numbers():
    values, mask = torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([[1, 0], [0, 1]])
    assert grpo.losses.masked_mean(values, mask) == 3.0


@pytest.mark.parametrize(
    ("method", "advantage", "value"), [("grpo", 1.0, -1.2), ("gspo", 1.0, -1.2), ("noclip", 0.0, 0)]
)
def test_a_ratio_that_overflows_where_it_has_no_gradient_gives_none(method, advantage, value):
    """exp(200) is inf in float32; the clipped loss is then -A (1 + e) with the gradient 0, not 0 x inf."""
    new = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    old = torch.tensor([[-201.0, -201.0]])
    loss, _ = compute_policy_gradient_loss(torch.tensor([advantage]), new, method, old, cliprange=0.2)
    assert loss.tolist()[0] == pytest.approx([value, value])
    loss.sum().backward()
    assert new.grad.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("method", ["grpo", "gspo", "noclip"])
def test_a_ratio_that_overflows_under_a_negative_advantage_is_not_hidden(method):
    new = torch.tensor([[-1.0, -1.0]], requires_grad=True)
    loss, _ = compute_policy_gradient_loss(
        torch.tensor([-1.0]), new, method, torch.tensor([[-201.0, -201.0]]), cliprange=0.2
    )
    assert loss.isinf().all()
