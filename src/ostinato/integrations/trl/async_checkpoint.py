"""What a checkpoint of TRL's asynchronous trainer lacks: the replay buffer, the rest of a batch, where versions stand.

<checkpoint>/ostinato_replay/buffer.npz    the buffer and the generator of its draws
<checkpoint>/ostinato_replay/pending.npz   what was drawn and not yet handed out
<checkpoint>/ostinato_replay/state.json    versions and groups
"""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from ostinato.errors import CheckpointError, ConfigError
from ostinato.rollout_arrays import from_arrays, to_arrays
from ostinato.setting_checks import check_whole
from ostinato.telemetry import directory_in_place, read_arrays, read_json_object, write_arrays, write_json

if TYPE_CHECKING:
    from ostinato.integrations.trl.async_queue import ReplayQueue
    from ostinato.integrations.trl.async_worker import ReplayRolloutWorker

FOLDER = "ostinato_replay"
DRAWS = "draws"
KEYS = ("version", "next_group", "prompt_index")


def save_state(held: ReplayQueue, directory: Path, worker: Any, *, weights_ahead: bool) -> None:
    """Write all of it to `directory`, whole or not at all."""
    with directory_in_place(directory) as place:
        held.buffer.save(place / "buffer.npz", **{DRAWS: held.rng})
        rest = held.rest()
        if rest is not None:
            write_arrays(place / "pending.npz", to_arrays(rest))
        state = {
            # Weights that were trained and not yet published are one version newer than those that are live.
            "version": held.version + weights_ahead,
            "next_group": held.group_shift + held.groups.largest + 1,
            "prompt_index": _start_of(worker) + held.groups.first_missing,
        }
        write_json(place / "state.json", state)


def load_state(held: ReplayQueue, directory: Path, worker: Any) -> None:
    """Inverse of `save_state`, into a queue of any settings. Raises `CheckpointError`."""
    try:
        told = read_json_object(directory / "state.json", required=KEYS)
        state = {key: check_whole(f"{directory / 'state.json'}: {key}", told[key], least=0) for key in KEYS}
        pending = directory / "pending.npz"
        rest = from_arrays(read_arrays(pending)) if pending.exists() else None
    except (OSError, ValueError, zipfile.BadZipFile) as error:  # DataError and ConfigError are ValueErrors
        raise CheckpointError(f"{directory} holds no replay state: {' '.join(str(error).split())}") from None
    generators = held.buffer.load(directory / "buffer.npz")
    held.rng = generators.get(DRAWS, held.rng)
    # The trainer counts versions from 0 again and publishes the restored weights as version 1.
    held.resume(rest, version_shift=state["version"] - 1, group_shift=state["next_group"])
    settings = _loop_settings(worker)
    if settings is not None:
        settings["dataset_start_index"] = state["prompt_index"]


def _start_of(worker: Any) -> int:
    settings = _loop_settings(worker)
    return 0 if settings is None else int(settings["dataset_start_index"])


def _loop_settings(worker: Any) -> dict[str, Any] | None:
    """Arguments of the loop in TRL's own worker, among them the prompt it starts at: what TRL's trainer writes to."""
    from trl.experimental.async_grpo.async_rollout_worker import AsyncRolloutWorker

    return worker._loop_kwargs if isinstance(worker, AsyncRolloutWorker) else None


class ReplayCheckpoints(TrainerCallback):
    """Saves what a `ReplayRolloutWorker` holds into each checkpoint, and restores it when training resumes from one.

    Checks, too, that the trainer was given the settings that the worker was. The checkpoint is looked for in
    `args.output_dir`; load one from elsewhere with `ReplayRolloutWorker.load` before `train`.
    """

    def __init__(self, worker: ReplayRolloutWorker) -> None:
        self._worker = worker

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Restore, before the trainer publishes its weights and starts the worker."""
        if args.max_staleness < self._worker.max_staleness:
            raise ConfigError(
                f"the trainer's max_staleness {args.max_staleness} is below the replay worker's "
                f"{self._worker.max_staleness}: give both the same AsyncGRPOConfig"
            )
        if not state.global_step or self._worker.rollout_buffer.version:
            return
        directory = Path(args.output_dir) / f"checkpoint-{state.global_step}" / FOLDER
        if directory.is_dir():
            self._worker.load(directory)
        else:
            warnings.warn(
                f"{directory} is not there: training resumes with an empty replay buffer. If the checkpoint lies "
                f"elsewhere, call load(<checkpoint>/{FOLDER}) of the ReplayRolloutWorker before train()",
                stacklevel=2,
            )

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save into the checkpoint that was just written."""
        if state.is_world_process_zero:
            target = Path(args.output_dir) / f"checkpoint-{state.global_step}" / FOLDER
            self._worker.save(target, weights_ahead=state.global_step % args.weight_sync_steps != 0)
