"""The files of one run, and who may write them.

<run>/run.json          settings and versions
<run>/metrics.jsonl     one line a train step and an evaluation
<run>/statistics.json   histograms of staleness, residence, uses, steps since last use
<run>/throughput.json   in real time: tokens a second and busy share of each generator and of the trainer
<run>/faults.jsonl      in real time: what went wrong and was put right, one line each
<run>/journal/          with buffer.journal: the buffer
<run>/checkpoints/      the two newest
<run>/finished.json     written last: counters and measured mu
<run>/trackers.json     ids of the run in experiment trackers, where it has any
<run>/.lock             empty; locked while a run is going on
"""

from __future__ import annotations

import errno
import fcntl
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ostinato.errors import CheckpointError, ConfigError, DataError, RunError
from ostinato.telemetry import JsonlWriter, read_json_object, read_jsonl, remove_unfinished, write_json

FREE_TO_CHANGE = (
    *("loop.compute_units", "loop.train_steps", "checkpoint_every", "arms", "runtime", "ray", "tracking"),
    "evaluation.examples",
    # Memory and place of the trainer and of vLLM's engine: the same steps, but for rounding.
    *(f"optimizer.{name}" for name in ("tokens_per_microbatch", "packing", "activation_checkpointing", "fsdp")),
    *(f"vllm.{name}" for name in ("gpu_memory_utilization", "kv_cache_gib", "max_model_len", "max_num_seqs")),
    *(f"vllm.{name}" for name in ("tensor_parallel_size", "enforce_eager", "sleep_level")),
)
"""Settings that a resumed run may change: how long, where, with how much memory, and what is shown."""

CHECKPOINT = "step-" + 8 * "[0-9]"

NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)
"""A file system without locks, as some clusters have: a run there goes unguarded."""


class RunDirectory:
    """One process's hold on a run directory, from construction until `close` or the process's end.

    Raises `RunError` when another run has it. `metrics` can be written after `begin`.
    """

    metrics: JsonlWriter

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise ConfigError(f"{error.filename} is a file, expected a run directory; choose another --out") from None
        # The file stays: were it removed, two runs could hold locks on two files of one name.
        self._held = ExitStack()
        lock = self._held.enter_context((path / ".lock").open("ab"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise RunError(f"another run is going on in {path}") from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                self.close()
                raise

    def claim(self, settings: Mapping[str, Any], *, resume: bool) -> None:
        """Leave alone what is not a run with these settings that shall go on; tidy up after one that was killed.

        Raises `ConfigError` when the directory holds a run and `resume` is False, or a run with other settings,
        `CheckpointError` when it holds what a run leaves without its run.json, `DataError` when that is damaged.
        """
        if (self.path / "summary.json").exists():
            raise ConfigError(f"{self.path} holds a comparison; choose another --out for a single run")
        has_settings = (self.path / "run.json").exists()
        metrics = self.path / "metrics.jsonl"
        has_results = bool(checkpoints(self.path)) or (metrics.exists() and metrics.stat().st_size > 0)
        if (has_settings or has_results) and not resume:
            raise ConfigError(f"{self.path} already holds a run; add --resume to go on, or choose another --out")
        if has_settings:
            refuse_other_settings(settings_of(self.path), settings, self.path)
        elif has_results:
            raise CheckpointError(f"checkpoints or metrics without run.json in {self.path}: their settings are unknown")
        remove_unfinished(self.path / "checkpoints", CHECKPOINT)

    def begin(self, about: Mapping[str, Any], *, keep_bytes: int) -> None:
        """Write run.json and open the metrics, of which the first `keep_bytes` bytes stay.

        Raises `CheckpointError` when there are fewer of them, `DataError` when one of their lines is damaged.
        """
        path = self.path / "metrics.jsonl"
        self.metrics = JsonlWriter(path, keep_bytes=keep_bytes)
        self._held.callback(self.metrics.close)
        read_jsonl(path)  # better refused now than after the training
        write_json(self.path / "run.json", about)
        (self.path / "finished.json").unlink(missing_ok=True)

    def records_behind(self, keep_bytes: int) -> list[dict[str, Any]]:
        """Whole metrics lines behind the first `keep_bytes` bytes: what a run did after its last checkpoint.

        Raises `DataError` for a damaged line.
        """
        path = self.path / "metrics.jsonl"
        return read_jsonl(path, skip_bytes=keep_bytes) if path.exists() else []

    def prune(self) -> None:
        """Remove all checkpoints but the two newest."""
        for old in checkpoints(self.path)[:-2]:
            shutil.rmtree(old)

    def close(self) -> None:
        """Close the metrics and let the next run in."""
        self._held.close()


def checkpoints(directory: Path) -> list[Path]:
    """Checkpoints of a run, the newest last."""
    return sorted((directory / "checkpoints").glob(CHECKPOINT))


def train_step_of(checkpoint: Path) -> int:
    """The train step after which a checkpoint was written."""
    return int(checkpoint.name.removeprefix("step-"))


def newest_checkpoint(directory: Path) -> Path:
    """The last checkpoint of a run. Raises `CheckpointError` when there is none."""
    found = checkpoints(directory)
    if not found:
        raise CheckpointError(f"{directory} holds no checkpoint")
    return found[-1]


def settings_of(directory: Path) -> dict[str, Any]:
    """The settings a run was begun with. Raises `DataError` when run.json is damaged, `OSError` when it is missing."""
    path = directory / "run.json"
    settings = read_json_object(path, required=("settings",))["settings"]
    if not isinstance(settings, dict):
        raise DataError(f"{path}: settings must be an object, got {settings!r}")
    return settings


def refuse_other_settings(old: Mapping[str, Any], new: Mapping[str, Any], directory: Path) -> None:
    """Raise `ConfigError` when a run would be resumed with a setting that changes its course."""
    before, after = dict(_leaves(old)), dict(_leaves(new))
    for name in sorted(before.keys() | after.keys()):
        if name.startswith(FREE_TO_CHANGE):
            continue
        if before.get(name) != after.get(name):
            raise ConfigError(
                f"{directory} was run with {name} = {before.get(name)!r}, cannot resume with {after.get(name)!r}"
            )


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for key, value in tree.items():
        leaves += _leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(prefix + key, value)]
    return leaves
