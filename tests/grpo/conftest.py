"""A small model folder with random weights, made once: the trainer's tests need no trained model."""

from __future__ import annotations

import pytest
import torch

from grpo.models import save_model
from grpo.tiny import build_model, build_tokenizer
from grpo.words import word_problems


@pytest.fixture(scope="session")
def random_model_folder(tmp_path_factory):
    torch.set_num_threads(1)  # models this small only lose time to a second thread
    tokenizer = build_tokenizer(p.question + p.answer for p in word_problems(200, levels=(1, 2)))
    model = build_model(tokenizer, hidden_size=32, num_layers=2, num_heads=2, intermediate_size=48)
    return save_model(model, tokenizer, tmp_path_factory.mktemp("models") / "random")
