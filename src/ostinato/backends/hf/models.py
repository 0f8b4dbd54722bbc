"""Causal language models: built from sizes, or loaded from a directory, the hub or SmolLM2's package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError
from safetensors import SafetensorError
from torch import Tensor

from ostinato.backends.hf.smollm2 import smollm2_directory
from ostinato.config import ModelConfig
from ostinato.errors import ConfigError, DataError, OstinatoError
from ostinato.protocols import Weights

CONTEXT_TOKENS = 2048
# Root of the errors of the HTTP library that the hub's client stands on; which library depends on its version.
HTTP_ERROR: type[BaseException] = HfHubHTTPError.__bases__[0]


def build_model(config: ModelConfig, tokenizer: Any, seed: int) -> Any:
    """A float32 Qwen3 with tied embeddings; its random weights depend on `seed` alone, global state is untouched."""
    architecture = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.hidden_size // config.heads,
        max_position_embeddings=CONTEXT_TOKENS,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.Qwen3ForCausalLM(architecture).eval()


def load_model(path: str, cache: Path) -> tuple[Any, Any]:
    """(model, tokenizer) in float32 from a directory, a hub name, or "smollm2" (converted once, kept below `cache`).

    Raises `ConfigError` when nothing can be loaded from there, `MissingExtraError` when SmolLM2's parts are absent.
    """
    try:
        with quiet():
            source = str(smollm2_directory(cache)) if path == "smollm2" else path
            _check_source(source)
            tokenizer = transformers.AutoTokenizer.from_pretrained(source)
            model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    except OstinatoError:
        raise
    except (OSError, ValueError, RuntimeError, SafetensorError, HTTP_ERROR) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"model.path {path!r}: expected a model directory or a reachable hub name; {reason}"
        ) from None
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"model.path {path!r}: its tokenizer has no end-of-sequence token")
    return model.eval(), tokenizer


def _check_source(source: str) -> None:
    # One question to the hub before transformers asks: it repeats each of many requests for half a minute.
    if not Path(source).is_dir() and not isinstance(try_to_load_from_cache(source, "config.json"), str):
        HfApi().model_info(source, timeout=10)


@torch.no_grad()
def let_hidden_states_be_seen(model: Any) -> None:
    """Make `model` tell its hidden states. transformers learns what a class can tell when one is constructed: of a
    model that was unpickled in a fresh process it knows nothing, and leaves them out without a word."""
    token = torch.zeros((1, 1), dtype=torch.int64, device=model.device)
    if model(input_ids=token, use_cache=False, output_hidden_states=True).hidden_states is None:
        with torch.device("meta"), quiet():
            type(model)(model.config)


def snapshot(model: Any) -> dict[str, Tensor]:
    """A copy of every parameter by name, in main memory; tied ones once."""
    return {name: parameter.detach().to("cpu", copy=True) for name, parameter in model.named_parameters()}


def restore(model: Any, weights: Weights) -> None:
    """Copy a snapshot (tensors or arrays) into `model` in place. Raises `DataError` when names or shapes differ."""
    parameters = dict(model.named_parameters())
    check_fits(parameters, weights)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.as_tensor(weights[name]))


def check_fits(parameters: Mapping[str, Tensor], weights: Weights) -> None:
    """Raise `DataError` when names or shapes differ."""
    if parameters.keys() != weights.keys():
        raise DataError(f"weights and model differ in {sorted(parameters.keys() ^ weights.keys())[:3]}")
    for name, parameter in parameters.items():
        if parameter.shape != weights[name].shape:
            raise DataError(f"{name} has shape {tuple(parameter.shape)}, got {tuple(weights[name].shape)}")


def keep_linear_weights_in_bf16(model: Any) -> None:
    """Round the weights of linear layers once, in place, as bf16 autocast would in every forward pass.

    Results under autocast stay the same bit for bit, and each decoded token saves the cast. The output layer keeps
    float32 where it is tied to the embedding. For a model that is not trained.
    """
    embedding = model.get_input_embeddings().weight
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module.weight is not embedding:
            module.to(torch.bfloat16)


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and notices of transformers inside the block; its settings come back afterwards."""
    log = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()
