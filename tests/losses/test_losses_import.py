"""Without torch the losses say what to install."""

import sys
from importlib import import_module

import pytest

from ostinato.errors import MissingExtraError


def import_without(monkeypatch: pytest.MonkeyPatch, missing: str, module: str) -> None:
    for name in [name for name in sys.modules if name.startswith(module)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    import_module(module)


@pytest.mark.parametrize("module", ["ostinato.losses", "ostinato.batching", "ostinato.logprobs", "ostinato.packing"])
def test_missing_torch_is_an_error_with_the_install_line(monkeypatch, module):
    with pytest.raises(MissingExtraError, match=r"torch is not installed; run: pip install 'ostinato\[hf\]'"):
        import_without(monkeypatch, "torch", module)


def test_missing_modules_of_our_own_are_not_blamed_on_torch(monkeypatch):
    with pytest.raises(ModuleNotFoundError, match=r"ostinato\.losses\.reduce"):
        import_without(monkeypatch, "ostinato.losses.reduce", "ostinato.losses")
