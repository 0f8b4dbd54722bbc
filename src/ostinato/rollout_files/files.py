"""Reading and writing by the ending of the name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ostinato.errors import ConfigError
from ostinato.rollout_files.jsonl import open_jsonl, write_jsonl
from ostinato.rollout_files.parquet import open_parquet, write_parquet
from ostinato.rollout_files.settings import ReadRules, RolloutFile
from ostinato.rollouts import Rollouts, concatenate

ENDINGS = {".jsonl": (open_jsonl, write_jsonl), ".parquet": (open_parquet, write_parquet)}


def open_rollouts(path: Path, rules: ReadRules | None = None) -> RolloutFile:
    """Look a .jsonl or .parquet file through; `parts()` of what is returned reads it in chunks.

    Raises `ConfigError` for other endings, else as `open_jsonl` and `open_parquet` do.
    """
    _refuse_other(path)
    return ENDINGS[path.suffix][0](path, rules or ReadRules())


def read_rollouts(path: Path, rules: ReadRules | None = None) -> Rollouts:
    """All rollouts of a file at once. Raises as `open_rollouts` does."""
    parts = list(open_rollouts(path, rules).parts())
    return concatenate(parts) if parts else Rollouts.from_completions([], [], [])


def write_rollouts(path: Path, parts: Iterable[Rollouts], *, overwrite: bool = False) -> int:
    """Write parts to a .jsonl or .parquet file, whole or not at all; returns the number of rollouts.

    Raises `ConfigError` for other endings and for a file that exists, unless it may be overwritten.
    """
    _refuse_other(path)
    return ENDINGS[path.suffix][1](path, parts, overwrite=overwrite)


def _refuse_other(path: Path) -> None:
    if path.suffix not in ENDINGS:
        raise ConfigError(f"{path} ends in {path.suffix or 'nothing'!r}, expected {' or '.join(ENDINGS)}")
