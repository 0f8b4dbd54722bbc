"""`JournaledBuffer`: a replay buffer whose acknowledged operations survive the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.journal.log import Log
from ostinato.buffer.journal.recorder import UNBOUNDED, Recorder, Recovery
from ostinato.buffer.padding import Layout, PaddedDraw
from ostinato.buffer.replay import ReplayBuffer
from ostinato.buffer.workspace import Workspace
from ostinato.errors import CheckpointError, ConfigError
from ostinato.protocols import Draw
from ostinato.rollout_arrays import to_arrays
from ostinato.rollouts import Rollouts
from ostinato.setting_checks import check_whole

Int = NDArray[np.int64]


class JournaledBuffer:
    """Wraps an empty `ReplayBuffer`: the same methods, and what they did is on record when they return.

    `directory`: belongs to this journal alone; when it holds one, the buffer is filled from it. `sync="process"`: a
    record survives the end of the process (SIGKILL), `sync="disk"`: the loss of power too (fdatasync). `max_bytes`: of
    the log; beyond it, or by default beyond twice the bytes of the last snapshot (at least 16 MiB), a snapshot is
    written and the log begins anew. `train_step`: where training goes on, when that may be before the last operation;
    then rollouts of versions that are to come again leave, with a `RuntimeWarning` (see `buffer.rewind`). `salvage`:
    instead of refusing damaged files set them aside, and go on with the records before the first one that is damaged.
    `recovered` says what was found (`Recovery`).

    An operation that was killed before it returned is in the journal wholly or not at all. Room on the disk is taken
    before an operation starts: on a full disk `OSError` is raised, nothing has changed, and the call may be repeated. A
    write that fails after that leaves the journal at the operation before, and every further change raises `RunError`.
    Raises `CheckpointError` for damaged or foreign files, `DataError` when buffer and directory both hold rollouts,
    `RunError` while another process has the directory. The files are then as before, the buffer is too or is empty.
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        directory: str | Path,
        *,
        sync: Literal["process", "disk"] = "process",
        max_bytes: int | None = None,
        train_step: int | None = None,
        salvage: bool = False,
    ) -> None:
        if sync not in ("process", "disk"):
            raise ConfigError(f"sync must be 'process' or 'disk', got {sync!r}")
        if max_bytes is not None:
            check_whole("max_bytes", max_bytes, least=1)
        self.buffer = buffer
        self._log = Log(Path(directory), sync=sync == "disk", salvage=salvage)
        self._recorder = Recorder(buffer, self._log, max_bytes)
        try:
            self.recovered: Recovery = self._recorder.open(train_step=train_step)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> JournaledBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.buffer)

    def close(self) -> None:
        """Close the journal; the buffer stays usable, unrecorded."""
        self._recorder.detach()
        self._log.close()

    @property
    def columns(self) -> Columns:
        """Read-only columns of what is held, oldest first."""
        return self.buffer.columns

    @property
    def capacity(self) -> int:
        """Rollouts held at most."""
        return self.buffer.capacity

    @property
    def added(self) -> int:
        """Rollouts inserted since the beginning."""
        return self.buffer.added

    @property
    def nbytes(self) -> int:
        """Bytes of what is held."""
        return self.buffer.nbytes

    @property
    def train_step(self) -> int:
        """The latest train step the buffer has been told."""
        return self.buffer.train_step

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """`ReplayBuffer.state_arrays`."""
        return self.buffer.state_arrays()

    def save(self, path: str | Path, **generators: np.random.Generator) -> int:
        """`ReplayBuffer.save`: a file of its own, which the journal knows nothing of."""
        return self.buffer.save(path, **generators)

    def check_add(self, rollouts: Rollouts, *, train_step: int, priorities: Any = None) -> None:
        """Raise the `DataError` that `add` would raise."""
        self.buffer.check_add(rollouts, train_step=train_step, priorities=priorities)

    def can_add(self, n: int) -> bool:
        """Whether the limiter lets n rollouts in now."""
        return self.buffer.can_add(n)

    def can_sample(self, n: int) -> bool:
        """Whether a batch of n can be drawn now."""
        return self.buffer.can_sample(n)

    def check(self) -> None:
        """Raise `DataError` when an invariant is broken."""
        self.buffer.check()

    def metrics(self) -> dict[str, float]:
        """Those of the buffer, bytes of the log, and snapshots that failed since it was opened."""
        own = {"journal_bytes": self._log.nbytes, "journal_failed_snapshots": self._recorder.failed_snapshots}
        return self.buffer.metrics() | {name: float(value) for name, value in own.items()}

    # ---------------------------------------------------------------- recorded

    def add(self, rollouts: Rollouts, *, train_step: int, priorities: Any = None) -> Int:
        """`ReplayBuffer.add`: when it returns the ids, the rollouts are on record."""

        def arrays(ids: Int) -> dict[str, NDArray[Any]]:
            stayed, book = self._recorder.arrivals(ids)
            kept = rollouts if stayed.all() else rollouts.select(np.flatnonzero(stayed))
            return to_arrays(kept, "rollouts.") | dict(book)

        ids: Int = self._recorder.record(
            "add",
            lambda: self.buffer.add(rollouts, train_step=train_step, priorities=priorities),
            arrays,
            nbytes=2 * rollouts.nbytes,
        )
        return ids

    def sample(self, n: int | None, *, train_step: int, rng: np.random.Generator, out: Workspace | None = None) -> Draw:
        """`ReplayBuffer.sample`: when it returns, what the draw consumed is on record and is not drawn again."""
        draw: Draw = self._draw(lambda: self.buffer.sample(n, train_step=train_step, rng=rng, out=out))
        return draw

    def sample_padded(
        self,
        n: int | None,
        *,
        train_step: int,
        rng: np.random.Generator,
        layout: Layout | None = None,
        out: Workspace | None = None,
    ) -> PaddedDraw:
        """`ReplayBuffer.sample_padded`, recorded as `sample` is."""
        draw: PaddedDraw = self._draw(
            lambda: self.buffer.sample_padded(n, train_step=train_step, rng=rng, layout=layout, out=out)
        )
        return draw

    def sample_prompts(
        self, prompt_ids: Any, per_prompt: int, *, train_step: int, rng: np.random.Generator, **options: Any
    ) -> Draw:
        """`ReplayBuffer.sample_prompts`, recorded as `sample` is."""
        draw: Draw = self._draw(
            lambda: self.buffer.sample_prompts(prompt_ids, per_prompt, train_step=train_step, rng=rng, **options),
        )
        return draw

    def update_priorities(self, rollout_ids: Any, priorities: Any) -> int:
        """`ReplayBuffer.update_priorities`."""
        return self._write(
            "priorities",
            lambda: self.buffer.update_priorities(rollout_ids, priorities),
            {"ids": rollout_ids, "priorities": priorities},
        )

    def update(self, rollout_ids: Any, **columns: Any) -> int:
        """`ReplayBuffer.update`."""
        named = {f"column.{name}": values for name, values in columns.items()}
        return self._write("update", lambda: self.buffer.update(rollout_ids, **columns), {"ids": rollout_ids, **named})

    def remove(self, rollout_ids: Any) -> int:
        """`ReplayBuffer.remove`."""
        return int(self._recorder.record("remove", lambda: self.buffer.remove(rollout_ids)))

    def clear(self) -> None:
        """`ReplayBuffer.clear`."""
        self._recorder.record("clear", self.buffer.clear)

    def retain(self, *, train_step: int) -> None:
        """`ReplayBuffer.retain`."""
        self._recorder.record("retain", lambda: self.buffer.retain(train_step=train_step))

    def resize(self, capacity: int, capacity_bytes: int | None = None) -> None:
        """`ReplayBuffer.resize`. Remembered as long as the journal is opened with a buffer of the same capacity."""
        if max(capacity, capacity_bytes or 0) > UNBOUNDED:
            raise ConfigError(f"a journal holds at most {UNBOUNDED} rollouts, got {capacity}, {capacity_bytes} bytes")
        size = np.array([capacity, capacity_bytes or 0])
        self._recorder.record(
            "resize", lambda: self.buffer.resize(capacity, capacity_bytes), lambda _: {"capacity": size}
        )

    def departures(self) -> Int:
        """`ReplayBuffer.departures`: what was reported is not reported again after a crash."""
        left: Int = self._recorder.record(
            "departures", self.buffer.departures, lambda left: {"uses": left} if len(left) else {}
        )
        return left

    def load_state_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """`ReplayBuffer.load_state_arrays`, then a snapshot: the journal begins anew from there."""
        self._log.check()
        self.buffer.load_state_arrays(arrays)  # refused: nothing has changed
        with self._log.operation(0):
            self._recorder.begin_anew()

    def load(self, path: str | Path) -> dict[str, np.random.Generator]:
        """`ReplayBuffer.load`, in the place of what is held; then a snapshot: the journal begins anew from there."""
        self._log.check()
        generators = self.buffer.load(path)  # refused: nothing has changed
        with self._log.operation(0):
            self._recorder.begin_anew()
        return generators

    def rotate(self) -> None:
        """Write a snapshot now and begin the log anew. Raises `OSError` when the disk refuses; old files then stay."""
        self._log.check()
        self._recorder.rotate()

    def _draw(self, act: Callable[[], Any]) -> Any:
        return self._recorder.record("draw", act, lambda draw: {"ids": draw.rollout_ids})

    def _write(self, operation: str, act: Callable[[], int], values: Mapping[str, Any]) -> int:
        arrays = {name: np.array(value) for name, value in values.items()}
        nbytes = sum(array.nbytes for array in arrays.values())
        return int(self._recorder.record(operation, act, lambda _: arrays, nbytes=nbytes))


def read_journal(buffer: ReplayBuffer, directory: str | Path) -> Recovery:
    """Fill an empty buffer from a journal that another process may be writing; takes no lock and changes no file.

    What is written meanwhile may be missing. Raises `CheckpointError` as `JournaledBuffer` does.
    """
    directory = Path(directory)
    while True:
        names = sorted(path.name for path in directory.glob("[!.]*"))
        try:
            return Recorder(buffer, Log(directory, sync=False, read_only=True), None).read()
        except (CheckpointError, OSError):
            if names == sorted(path.name for path in directory.glob("[!.]*")):
                raise  # else the writer has begun its log anew: look again
            buffer.clear()
