"""vLLM backend: its asynchronous engine as a generator. Import from the modules."""

from importlib.util import find_spec

from ostinato.errors import MissingExtraError

for _module in ("vllm", "torch", "transformers"):
    if find_spec(_module) is None:
        raise MissingExtraError(_module, "vllm")
