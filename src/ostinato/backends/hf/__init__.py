"""Hugging Face backend: any causal language model of transformers generates and trains. Import from the modules."""

from importlib.util import find_spec

from ostinato.errors import MissingExtraError

for _module in ("torch", "transformers", "tokenizers", "safetensors", "jinja2"):
    if find_spec(_module) is None:
        raise MissingExtraError(_module, "hf")
