"""Notation and glossary: every name in code font exists in the code."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

import grpo
import toyrl
from grpo.update import UpdateSettings
from toyrl.batches import gradient_moments

ROOT = Path(__file__).resolve().parent.parent
DOCS = ("notation", "glossary")
NAMES = set(grpo.__all__) | set(toyrl.__all__) | set(grpo.ESTIMATORS) | {gradient_moments.__name__}
NAMES |= {field.name for settings in (grpo.TrainSettings, UpdateSettings, toyrl.Settings) for field in fields(settings)}
NAMES |= set(grpo.compute_policy_gradient_loss.__code__.co_varnames) | set(grpo.grpo_train_step.__code__.co_varnames)
NAMES |= set(grpo.compute_group_normalized_rewards.__code__.co_varnames) | {"cispo", "gspo"}
NAMES |= {"labels", "policy", "ref_log_probs", "expected_reward", "log_probs"}


@pytest.mark.parametrize("doc", DOCS)
def test_names_exist(doc):
    text = (ROOT / "docs" / f"{doc}.md").read_text(encoding="utf-8")
    first_run = (ROOT / "data/runs/estimator/grpo/seed42/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    known = NAMES | {name for line in first_run[:2] for name in json.loads(line)}
    names = re.findall(r"`([^`]+)`", text)
    assert len(names) > 20
    assert [name for name in names if name not in known] == []


def test_the_glossary_is_in_order_and_long_enough():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^\| (?!term|---)([^|]+?) \|.*\| (\d\d) \|$", text, re.MULTILINE)
    assert len(terms) >= 50
    assert len({term for term, _ in terms}) == len(terms)
    notebooks = {path.name[:2] for path in (ROOT / "notebooks").glob("*.ipynb")} | {"08", "09", "10", "11"}
    assert {number for _, number in terms} <= notebooks
    names = [term.lower() for term, _ in terms]
    assert names == sorted(names)
