"""TRL, imported once before any test, and a tiny model on disk for its trainers."""

import os
import warnings

import pytest

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns about a vLLM newer than those it was tested with; nothing here uses one
    try:
        import trl.trainer.grpo_trainer
    except ModuleNotFoundError:  # the tests skip themselves
        trl = None


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Qwen3 of two layers whose predictions differ clearly from uniform, and a tokenizer of characters."""
    pytest.importorskip("trl")
    from replaying import save_tiny_model

    return save_tiny_model(tmp_path_factory.mktemp("model"))
