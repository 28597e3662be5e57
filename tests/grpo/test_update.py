"""The update: what must not depend on microbatches and pruning, and what happens to a step that has gone wrong."""

import copy
import math

import pytest
import torch
from dummies import (
    VOCABULARY,
    ConstantModel,
    DummyModel,
    DummyTokenizer,
    flat,
    relative_error,
    row_log_probs,
    sgd_gradient,
)

from grpo.losses import compute_kl
from grpo.tokenization import tokenize_prompt_and_output
from grpo.update import UpdateSettings, policy_gradient_update, split_into_microbatches

F64 = torch.float64


def make_batch(responses, prompts=None, pad_token="_"):
    prompts = prompts or ["c"] * len(responses)
    return tokenize_prompt_and_output(
        prompts, [""] * len(responses), DummyTokenizer(pad_token), output_token_ids=responses
    )


RESPONSES = [[4, 6, 1], [3], [7, 7, 5, 4, 1], [], [5, 1, 3, 3], [6, 6]]
ADVANTAGES = torch.tensor([1.0, 0.0, -2.0, 0.5, 0.0, 0.25], dtype=F64)


def old_and_ref(batch, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = batch["labels"].shape
    return [-2 + 0.5 * torch.randn(shape, generator=generator, dtype=F64) for _ in range(2)]


def settings(**changes):
    return UpdateSettings(**({"gradient_accumulation_steps": 2} | changes))


# Microbatches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("normalization", "constant", "expected"), [("sequence", None, 1.5), ("token", None, 1.9), ("constant", 20.0, 0.95)]
)
def test_fact_7_rows_of_1_and_9_tokens(steps, normalization, constant, expected):
    # the uniform model has log pi = -log 8 everywhere, so that advantages of 1 and 2 over log 8 give losses of 1 and 2
    batch = make_batch([[3], [3] * 9])
    advantages = torch.tensor([1.0, 2.0], dtype=F64) / math.log(VOCABULARY)
    wanted = settings(
        gradient_accumulation_steps=steps, loss_normalization=normalization, normalization_constant=constant
    )
    model = ConstantModel()
    gradient, (loss, metadata) = sgd_gradient(
        model, lambda optimizer: policy_gradient_update(model, optimizer, batch, advantages, wanted)
    )
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    assert metadata["loss"] == loss.item()
    # d loss / d logits of -A log pi is A (p - onehot): the loss over log 8 times (1/8 - [token 3])
    share = torch.full((VOCABULARY,), 1 / VOCABULARY, dtype=F64)
    share[3] -= 1
    torch.testing.assert_close(gradient, share * expected / math.log(VOCABULARY), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 6, 50])
@pytest.mark.parametrize("prune", [True, False])
def test_every_row_is_in_one_microbatch(steps, prune):
    lengths = torch.tensor([4, 2, 6, 0, 5, 3])
    parts = split_into_microbatches(ADVANTAGES, lengths, steps, prune)
    rows = [i for part in parts for i in part.tolist()]
    assert sorted(rows) == ([0, 2, 3, 5] if prune else [0, 1, 2, 3, 4, 5])
    for part in parts:
        assert 1 <= len(part) <= math.ceil(6 / steps)
        assert len({ADVANTAGES[i].item() == 0 for i in part}) == 1
        assert lengths[part].tolist() == sorted(lengths[part].tolist(), reverse=True)


def test_one_microbatch_by_default_when_no_row_is_without_advantage():
    assert len(split_into_microbatches(torch.ones(6), torch.arange(6), 1, True)) == 1
    assert len(split_into_microbatches(torch.ones(6), torch.arange(6), 3, True)) == 3


def test_pruned_rows_and_padding_never_reach_the_model():
    model, batch = DummyModel(), make_batch(RESPONSES)
    advantages = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 0.0], dtype=F64)
    _, metadata = policy_gradient_update(
        model, torch.optim.SGD(model.parameters(), lr=0.1), batch, advantages, settings(gradient_accumulation_steps=6)
    )
    assert [call.tolist() for call in model.calls] == [[[5, 4, 6]], [[5]]]
    assert metadata["rows_pruned"] == 4
    assert metadata["tokens_processed"] == 4


def test_a_model_may_look_at_nothing_but_its_context():
    """Column t of the input is what label t is predicted from: an update on one row is an update on that row alone."""
    model, batch = DummyModel(), make_batch(RESPONSES)
    gradients = []
    for only in (torch.tensor([2]), torch.arange(6)):
        part = {name: value[only] for name, value in batch.items()}
        advantages = torch.zeros(len(only), dtype=F64)
        advantages[(only == 2).nonzero()[0]] = 1.0
        wanted = settings(loss_normalization="constant", normalization_constant=3, prune_zero_advantages=False)

        def step(optimizer, part=part, advantages=advantages, wanted=wanted):
            return policy_gradient_update(model, optimizer, part, advantages, wanted)

        gradients.append(sgd_gradient(model, step)[0])
    assert relative_error(gradients[1], gradients[0]) < 1e-12


# Fact 8: rows of zero advantage -----------------------------------------------------------------------------------


def adam_after(prune, advantages, kl_coef=0.0, method="grpo", steps=2, warm=True):
    """(model, optimizer, loss, metadata) of an update by Adam, which has momentum from one earlier update if warm."""
    model, batch = DummyModel(), make_batch(RESPONSES)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    old, ref = old_and_ref(batch)
    if warm:
        policy_gradient_update(model, optimizer, batch, torch.arange(6, dtype=F64) - 2, UpdateSettings())
    wanted = settings(
        gradient_accumulation_steps=steps, prune_zero_advantages=prune, kl_coef=kl_coef,
        importance_reweighting_method=method, cliprange=0.2,
    )  # fmt: skip
    loss, metadata = policy_gradient_update(model, optimizer, batch, advantages, wanted, old, ref)
    return model, optimizer, loss, metadata


def assert_same_metadata(a, b, apart=("rows_pruned", "tokens_processed")):
    assert a.keys() == b.keys()
    for name in a.keys() - set(apart):
        assert a[name] == pytest.approx(b[name], rel=1e-9, abs=1e-12, nan_ok=True), name


@pytest.mark.parametrize("method", ["none", "noclip", "grpo", "gspo", "cispo"])
def test_fact_8_pruning_changes_nothing(method):
    pruned = adam_after(True, ADVANTAGES, method=method)
    whole = adam_after(False, ADVANTAGES, method=method)
    assert relative_error(flat(list(pruned[0].parameters())), flat(list(whole[0].parameters()))) < 1e-12
    assert pruned[2].item() == pytest.approx(whole[2].item(), rel=1e-12)
    assert_same_metadata(pruned[3], whole[3])
    assert (pruned[3]["rows_pruned"], whole[3]["rows_pruned"]) == (2, 0)
    assert (pruned[3]["tokens_processed"], whole[3]["tokens_processed"]) == (3 + 5 + 0 + 2, 3 + 1 + 5 + 0 + 4 + 2)


def test_fact_8_when_every_row_is_dropped_adam_still_moves_on_its_momentum():
    nothing = torch.zeros(6, dtype=F64)
    before = DummyModel()
    optimizer = torch.optim.AdamW(before.parameters(), lr=0.01, weight_decay=0.1)
    policy_gradient_update(before, optimizer, make_batch(RESPONSES), torch.arange(6, dtype=F64) - 2, UpdateSettings())
    start = flat(list(before.parameters()))
    pruned, whole = adam_after(True, nothing), adam_after(False, nothing)
    moved = flat(list(pruned[0].parameters()))
    assert (moved - start).norm() > 1e-3
    assert relative_error(moved - start, flat(list(whole[0].parameters())) - start) < 1e-9
    assert pruned[2].item() == whole[2].item() == 0.0
    assert pruned[3]["grad_norm"] == whole[3]["grad_norm"] == 0.0
    assert pruned[3]["rows_pruned"] == 6
    assert pruned[3]["tokens_processed"] == 0
    assert pruned[3]["skipped"] == 0
    for name in ("token_entropy", "clip_fraction", "ratio_mean", "ratio_max", "approx_kl"):
        assert math.isnan(pruned[3][name]), name
    assert_same_metadata(pruned[3], whole[3])
    states = [list(x[1].state_dict()["state"].values()) for x in (pruned, whole)]
    for a, b in zip(*states, strict=True):
        assert all(torch.equal(a[key], b[key]) for key in a)
        assert a["step"] == 2


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("normalization", ["sequence", "constant", "token"])
@pytest.mark.parametrize("advantages", [ADVANTAGES, torch.zeros(6, dtype=F64)], ids=["some", "none"])
def test_fact_8_a_kl_term_keeps_rows_of_zero_advantage(estimator, normalization, advantages):
    batch, wanted = make_batch(RESPONSES), {"kl_coef": 0.3, "kl_estimator": estimator}
    _, ref = old_and_ref(batch)
    model = DummyModel()
    loss_settings = settings(loss_normalization=normalization, normalization_constant=9.0, **wanted)
    gradient, (loss, metadata) = sgd_gradient(
        model, lambda o: policy_gradient_update(model, o, batch, advantages, loss_settings, None, ref)
    )
    # by hand: each token has the loss -A log pi + 0.3 k, with d k / d log pi = 1, -d, 1 - exp(d)
    model = DummyModel()
    expected, combination = 0.0, torch.zeros((), dtype=F64)
    for i, response in enumerate(RESPONSES):
        log_pi = row_log_probs(model, [5], response)
        share = {"sequence": 1 / (6 * max(1, len(response))), "constant": 1 / 9, "token": 1 / 15}[normalization]
        for t, x in enumerate(log_pi):
            d = ref[i, t].item() - x.item()
            a = advantages[i].item()
            value, slope = {"k1": (-d, 1.0), "k2": (d * d / 2, -d), "k3": (math.exp(d) - 1 - d, 1 - math.exp(d))}[
                estimator
            ]
            expected += share * (-a * x.item() + 0.3 * value)
            combination = combination + share * (-a + 0.3 * slope) * x
    assert relative_error(gradient, flat(torch.autograd.grad(combination, list(model.parameters())))) < 1e-10
    assert loss.item() == pytest.approx(expected, rel=1e-10)
    assert gradient.norm() > 1e-3
    assert metadata["rows_pruned"] == 0


def test_fact_8_metrics_are_over_response_tokens_of_rows_with_an_advantage():
    batch = make_batch(RESPONSES)
    old, ref = old_and_ref(batch)
    for prune, kl_coef in ((True, 0.0), (False, 0.0), (True, 0.3)):
        model = DummyModel()
        log_pi = [row_log_probs(model, [5], r).detach() for r in RESPONSES]
        kept = [i for i in range(6) if ADVANTAGES[i] != 0]
        chosen = torch.cat([log_pi[i] for i in kept])
        old_chosen, ref_chosen = (torch.cat([x[i, : len(RESPONSES[i])] for i in kept]) for x in (old, ref))
        ratio = (chosen - old_chosen).exp()
        signs = torch.cat([ADVANTAGES[i].sign().expand(len(RESPONSES[i])) for i in kept])
        entropies = []
        for i in kept:
            for t in range(len(RESPONSES[i])):
                p = model(torch.tensor([[5, *RESPONSES[i][:t]]])).logits[0, -1].softmax(0)
                entropies.append(-(p * p.log()).sum().item())
        wanted = settings(
            importance_reweighting_method="grpo", cliprange=0.1, prune_zero_advantages=prune, kl_coef=kl_coef
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        _, metadata = policy_gradient_update(model, optimizer, batch, ADVANTAGES, wanted, old, ref)
        clipped = ((signs > 0) & (ratio > 1.1)) | ((signs < 0) & (ratio < 0.9))
        assert 0 < clipped.double().mean() < 1
        assert metadata["clip_fraction"] == pytest.approx(clipped.double().mean().item())
        assert metadata["ratio_mean"] == pytest.approx(ratio.mean().item())
        assert metadata["ratio_max"] == pytest.approx(ratio.max().item())
        assert metadata["approx_kl"] == pytest.approx((ratio - 1 - ratio.log()).mean().item())
        assert metadata["token_entropy"] == pytest.approx(sum(entropies) / len(entropies))
        if kl_coef:
            expected = compute_kl(chosen[None], ref_chosen[None], "k3").mean().item()
            assert metadata["kl_to_reference"] == pytest.approx(expected)
        else:
            assert "kl_to_reference" not in metadata


# The step itself --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [None, 0.01, 1e6])
def test_max_grad_norm(limit):
    batch, model = make_batch(RESPONSES), DummyModel()
    raw, (_, free) = sgd_gradient(model, lambda o: policy_gradient_update(model, o, batch, ADVANTAGES, settings()))
    clipped, (_, metadata) = sgd_gradient(
        model, lambda o: policy_gradient_update(model, o, batch, ADVANTAGES, settings(max_grad_norm=limit))
    )
    assert raw.norm().item() > 0.02
    assert free["grad_norm"] == metadata["grad_norm"] == pytest.approx(raw.norm().item())  # the norm before clipping
    scale = min(1.0, (limit or math.inf) / raw.norm().item())
    torch.testing.assert_close(clipped, raw * scale, rtol=1e-4, atol=1e-9)  # torch divides by norm + 1e-6
    if limit != 0.01:
        assert torch.equal(clipped, raw)


def test_gradients_left_over_from_before_are_not_added_and_none_is_left():
    batch, model = make_batch(RESPONSES), DummyModel()
    clean, _ = sgd_gradient(model, lambda o: policy_gradient_update(model, o, batch, ADVANTAGES, settings()))

    def with_left_overs(optimizer):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        return policy_gradient_update(model, optimizer, batch, ADVANTAGES, settings())

    dirty, _ = sgd_gradient(model, with_left_overs)  # which asserts that every grad is None
    assert torch.equal(clean, dirty)


def test_frozen_parameters_stay():
    batch, model = make_batch(RESPONSES), DummyModel()
    model.embedding.weight.requires_grad_(False)
    before = model.embedding.weight.clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    for advantages in (ADVANTAGES, torch.zeros(6, dtype=F64)):
        policy_gradient_update(model, optimizer, batch, advantages, settings())
    assert torch.equal(model.embedding.weight, before)
    assert model.embedding.weight.grad is None


def break_loss(model, batch, old):
    old[0, 0] = -math.inf  # a response token: pi / 0
    return {"importance_reweighting_method": "noclip"}


def break_loss_with_nan(model, batch, old):
    old[2, 1] = math.nan
    return {"importance_reweighting_method": "cispo", "cliprange": 0.2}


def break_gradient(model, batch, old):
    model.mix.weight.register_hook(lambda g: g * math.inf)
    return {}


def break_one_number_of_the_gradient(model, batch, old):
    model.head.bias.register_hook(lambda g: torch.where(torch.arange(len(g)) == 3, math.nan, g))
    return {"max_grad_norm": 1.0}


@pytest.mark.parametrize("fault", [break_loss, break_loss_with_nan, break_gradient, break_one_number_of_the_gradient])
@pytest.mark.parametrize("warm", [True, False], ids=["with momentum", "first step"])
def test_a_step_that_is_not_finite_changes_nothing(fault, warm):
    batch, model = make_batch(RESPONSES), DummyModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    if warm:
        policy_gradient_update(model, optimizer, batch, ADVANTAGES, settings())
    old, _ = old_and_ref(batch)
    parameters = [p.detach().clone() for p in model.parameters()]
    state = copy.deepcopy(optimizer.state_dict())
    changes = fault(model, batch, old)
    loss, metadata = policy_gradient_update(model, optimizer, batch, ADVANTAGES, settings(**changes), old)
    assert metadata["skipped"] == 1
    assert not (math.isfinite(metadata["loss"]) and math.isfinite(metadata["grad_norm"]))
    assert not loss.requires_grad
    for p, before in zip(model.parameters(), parameters, strict=True):
        assert torch.equal(p, before)
        assert p.grad is None
    after = optimizer.state_dict()
    assert after["state"].keys() == state["state"].keys()
    assert bool(state["state"]) == warm
    for key, values in state["state"].items():
        assert all(torch.equal(after["state"][key][name], value) for name, value in values.items())
    assert after["param_groups"] == state["param_groups"]


def test_a_step_after_a_skipped_one_is_a_step():
    batch, model = make_batch(RESPONSES), DummyModel()
    old = torch.full(batch["labels"].shape, -2.0, dtype=F64)
    wanted = settings(importance_reweighting_method="noclip")
    clean, _ = sgd_gradient(model, lambda o: policy_gradient_update(model, o, batch, ADVANTAGES, wanted, old))

    def skip_then_step(optimizer):
        _, skipped = policy_gradient_update(model, optimizer, batch, ADVANTAGES, wanted, old * math.inf)
        _, taken = policy_gradient_update(model, optimizer, batch, ADVANTAGES, wanted, old)
        return skipped["skipped"], taken["skipped"]

    gradient, flags = sgd_gradient(model, skip_then_step)
    assert flags == (1, 0)
    assert torch.equal(gradient, clean)


@pytest.mark.parametrize("normalization", ["sequence", "constant", "token"])
def test_no_response_token_at_all_is_a_step_of_zero(normalization):
    for batch in (make_batch([[], []]), make_batch([[], []], prompts=["cd", "c"])):
        model = DummyModel()
        wanted = settings(loss_normalization=normalization, normalization_constant=5.0)
        gradient, (loss, metadata) = sgd_gradient(
            model,
            lambda o, m=model, b=batch, w=wanted: policy_gradient_update(m, o, b, torch.ones(2, dtype=F64), w),
        )
        assert loss.item() == 0.0
        assert gradient.norm() == 0.0
        assert metadata["skipped"] == 0
        assert math.isnan(metadata["token_entropy"])


def test_fact_11_temperature_reaches_the_gradient():
    batch, model = make_batch([[4, 6, 1]]), DummyModel()
    wanted = settings(temperature=0.5, loss_normalization="constant", normalization_constant=1.0)
    gradient, (loss, _) = sgd_gradient(
        model, lambda o: policy_gradient_update(model, o, batch, torch.ones(1, dtype=F64), wanted)
    )
    model = DummyModel()
    expected = -row_log_probs(model, [5], [4, 6, 1], temperature=0.5).sum()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    assert relative_error(gradient, flat(torch.autograd.grad(expected, list(model.parameters())))) < 1e-12


def test_fact_13_autocast_over_float32_weights_moves_at_a_rate_of_1e_5():
    batch = make_batch(RESPONSES)
    advantages = ADVANTAGES.float()
    results = {}
    for name, dtype, autocast_dtype in (
        ("float32", torch.float32, None),
        ("autocast", torch.float32, torch.bfloat16),
        ("bfloat16", torch.bfloat16, None),
    ):
        model = DummyModel(dtype=dtype)
        with torch.no_grad():
            for p in model.parameters():
                p.clamp_(min=0.5, max=1.0)  # where bfloat16's steps are 0.002 to 0.004 apart
        before = flat(list(model.parameters()))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0)
        loss, metadata = policy_gradient_update(
            model, optimizer, batch, advantages, settings(autocast_dtype=autocast_dtype)
        )
        assert metadata["skipped"] == 0
        results[name] = (model, flat(list(model.parameters())) - before, loss.item())
    model, moved, loss = results["autocast"]
    assert model.logits_dtypes == {torch.bfloat16}, "autocast was not on"
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert moved.abs().max().item() == pytest.approx(1e-5, rel=0.05)
    assert (moved != 0).double().mean() > 0.5
    assert loss == pytest.approx(results["float32"][2], rel=0.05)
    agreement = torch.nn.functional.cosine_similarity(moved, results["float32"][1], dim=0)
    assert agreement > 0.8
    assert results["float32"][0].logits_dtypes == {torch.float32}
    assert results["bfloat16"][1].abs().max() == 0.0


# Bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"importance_reweighting_method": "ppo"},
            r"importance_reweighting_method='ppo' is unknown.*'none', 'noclip', 'grpo', 'gspo', 'cispo'",
        ),
        ({"loss_normalization": "mean"}, r"loss_normalization='mean' is unknown.*'sequence', 'constant', 'token'"),
        ({"kl_estimator": "k4"}, r"kl_estimator='k4' is unknown.*'k1', 'k2', 'k3'"),
        ({"importance_reweighting_method": "grpo"}, r"cliprange=None with importance_reweighting_method='grpo'"),
        ({"importance_reweighting_method": "cispo", "cliprange": -1.0}, r"cliprange=-1\.0 must be"),
        ({"loss_normalization": "constant"}, r"normalization_constant=None.*above 0"),
        ({"loss_normalization": "constant", "normalization_constant": -3}, r"normalization_constant=-3.*above 0"),
        ({"gradient_accumulation_steps": 0}, r"gradient_accumulation_steps=0 must be an integer of at least 1"),
        ({"gradient_accumulation_steps": 1.5}, r"gradient_accumulation_steps=1\.5 must be an integer"),
        ({"max_grad_norm": 0.0}, r"max_grad_norm=0\.0 must be above 0, or None"),
        ({"max_grad_norm": math.nan}, r"max_grad_norm=nan must be above 0"),
        ({"kl_coef": -0.1}, r"kl_coef=-0\.1 must be a finite number of at least 0"),
        ({"temperature": 0.0}, r"temperature=0\.0 must be a finite number above 0"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(changes, message):
    with pytest.raises(ValueError, match=message):
        UpdateSettings(**changes)


@pytest.mark.parametrize(
    ("changes", "arguments", "message"),
    [
        (
            {"importance_reweighting_method": "noclip"},
            {},
            r"old_log_probs=None with importance_reweighting_method='noclip'",
        ),
        (
            {"importance_reweighting_method": "noclip"},
            {"old": (6, 4)},
            r"old_log_probs has shape \(6, 4\); expected \(6, 5\)",
        ),
        ({"kl_coef": 0.1}, {}, r"ref_log_probs=None with kl_coef=0\.1"),
        ({}, {"weights": (6, 4)}, r"token_weights has shape \(6, 4\); expected \(6, 5\)"),
        ({"kl_coef": 0.1}, {"ref": (5, 5)}, r"ref_log_probs has shape \(5, 5\); expected \(6, 5\)"),
        ({}, {"advantages": (6, 1)}, r"advantages has shape \(6, 1\); expected \(6,\)"),
        ({}, {"advantages": (5,)}, r"advantages has shape \(5,\); expected \(6,\)"),
    ],
)
def test_what_does_not_fit_the_batch_is_refused_before_the_model_is_called(changes, arguments, message):
    model, batch = DummyModel(), make_batch(RESPONSES)
    columns = [torch.zeros(arguments[name]) if name in arguments else None for name in ("old", "ref", "weights")]
    advantages = torch.ones(arguments.get("advantages", (6,)))
    with pytest.raises(ValueError, match=message):
        policy_gradient_update(
            model, torch.optim.SGD(model.parameters(), lr=0.1), batch, advantages, settings(**changes), *columns
        )
    assert not model.calls


@pytest.mark.parametrize("steps", [1, 3])
def test_token_weights_multiply_each_tokens_loss_and_no_kl_term(steps):
    batch, model = make_batch(RESPONSES), DummyModel()
    _, ref = old_and_ref(batch)
    weights = 0.5 + torch.rand(batch["labels"].shape, generator=torch.Generator().manual_seed(1), dtype=F64)
    # by the definition: mean over a row's response tokens of -w A log pi + 0.1 (log pi - log ref)^2 / 2, then over rows
    total = torch.zeros((), dtype=F64)
    for row, mask in enumerate(batch["response_mask"]):
        if mask.any():
            log_p = row_log_probs(model, [int(batch["input_ids"][row, 0])], RESPONSES[row])
            loss = -weights[row][mask] * ADVANTAGES[row] * log_p + 0.1 * (log_p - ref[row][mask]) ** 2 / 2
            total = total + loss.mean() / len(RESPONSES)
    expected = flat(torch.autograd.grad(total, list(model.parameters())))
    chosen = settings(gradient_accumulation_steps=steps, kl_coef=0.1, kl_estimator="k2")
    gradient, (loss, _) = sgd_gradient(
        model, lambda sgd: policy_gradient_update(model, sgd, batch, ADVANTAGES, chosen, None, ref, weights)
    )
    assert relative_error(gradient, expected) < 1e-9
    assert loss.item() == pytest.approx(total.item(), rel=1e-9)


def test_rows_beyond_the_context_are_refused_before_the_model_is_called():
    batch = make_batch(RESPONSES)
    model = DummyModel(context=4)
    with pytest.raises(ValueError, match=r"5 tokens long; the model's context holds 4"):
        policy_gradient_update(model, torch.optim.SGD(model.parameters(), lr=0.1), batch, ADVANTAGES, settings())
    assert not model.calls
    model = DummyModel(context=5)  # the last token is a label only
    policy_gradient_update(model, torch.optim.SGD(model.parameters(), lr=0.1), batch, ADVANTAGES, settings())
