"""Fixtures for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def gsm8k_dir() -> Path:
    """The folder of GSM8K's real files: $GRPO_DATA_DIR, else ../shared/gsm8k beside the checkout."""
    root = Path(__file__).resolve().parent.parent
    folder = Path(os.environ.get("GRPO_DATA_DIR") or root.parent / "shared" / "gsm8k")
    missing = [name for name in ("train.jsonl", "test.jsonl") if not (folder / name).is_file()]
    if missing:
        pytest.skip(f"no {' or '.join(missing)} in {folder}: set GRPO_DATA_DIR, or run `grpo data fetch gsm8k`")
    return folder


@pytest.fixture
def said(capsys):
    """A function that runs a notebook's check on an answer and returns the one line that the check prints."""

    def said(check, answer):
        assert check(answer) is None
        message = capsys.readouterr().out
        assert message.count("\n") == 1
        return message.strip()

    return said
