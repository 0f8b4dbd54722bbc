"""Rollouts in files that others read and write, and a look at those a buffer left on disk."""

from ostinato.rollout_files.files import open_rollouts, read_rollouts, write_rollouts
from ostinato.rollout_files.filling import filled_buffer
from ostinato.rollout_files.jsonl import open_jsonl, write_jsonl
from ostinato.rollout_files.names import renaming
from ostinato.rollout_files.parquet import open_parquet, write_parquet
from ostinato.rollout_files.settings import ReadReport, ReadRules, RolloutFile
from ostinato.rollout_files.stored import Stored, open_stored
from ostinato.rollout_files.summary import shown_rows, summary

__all__ = [
    "ReadReport",
    "ReadRules",
    "RolloutFile",
    "Stored",
    "filled_buffer",
    "open_jsonl",
    "open_parquet",
    "open_rollouts",
    "open_stored",
    "read_rollouts",
    "renaming",
    "shown_rows",
    "summary",
    "write_jsonl",
    "write_parquet",
    "write_rollouts",
]
