from dataclasses import replace

import pytest
import torch

from toyrl.parallel import train_in_processes
from toyrl.settings import Settings
from toyrl.training import train

SHORT = Settings(epochs=4, scale=0.3)


def test_dealing_out_seeds_changes_nothing():
    # A lambda in the settings must survive the way to the processes.
    settings = replace(SHORT, entropy_weight=lambda done: 0.1 * (1 - done))
    held_out = torch.tensor([[4, 0, 1]])
    together = train(settings, seeds=[3, 1, 4, 1, 5], held_out=held_out)
    dealt = train_in_processes(settings, seeds=[3, 1, 4, 1, 5], workers=2, held_out=held_out)
    assert dealt.seeds == together.seeds
    for one, two in zip(together.policy.parameters(), dealt.policy.parameters(), strict=True):
        assert torch.equal(one, two)
    assert set(dealt.curves) == set(together.curves)
    for name, values in together.curves.items():
        torch.testing.assert_close(dealt.curves[name], values, rtol=0, atol=1e-6, equal_nan=True)


def test_one_worker_and_more_workers_than_seeds():
    expected = train(SHORT, seeds=2).final()
    for workers in (1, 5):
        assert torch.equal(train_in_processes(SHORT, seeds=2, workers=workers).final(), expected)


def test_a_workers_failure_is_reported():
    def broken(rewards):
        raise ZeroDivisionError("on purpose")

    with pytest.raises(RuntimeError, match="ZeroDivisionError: on purpose"):
        train_in_processes(replace(SHORT, delta=broken), seeds=4)
    with pytest.raises(ValueError, match="workers=0 must be at least 1"):
        train_in_processes(SHORT, seeds=4, workers=0)
