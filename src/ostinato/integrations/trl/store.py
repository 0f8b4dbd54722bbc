"""The buffer of one process with what belongs to it: generator, counters, and how both are saved."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ostinato.buffer import MinSize, ReplayBuffer, Uniform
from ostinato.errors import CheckpointError, DataError
from ostinato.integrations.trl.config import ReplayConfig
from ostinato.protocols import Draw
from ostinato.rollouts import Rollouts
from ostinato.telemetry import read_json_object, write_json
from ostinato.usable import REFUSED, usable_rollouts

logger = logging.getLogger(__name__)

DRAW_STREAM = 6
"""Second entry of the seed of the draws, so that they share no stream with others made from the run's seed."""
FORMAT = 1


class ReplayStore:
    """What one process replays from.

    Each process has its own buffer, with its share of the capacity, and draws its own part of each batch with its own
    generator: no rollout travels. Every process adds and draws at the same steps, so collectives meet.
    `generation_rows`: rollouts of one generation of this process. `recorded_with`: settings on which it depends what is
    stored of a rollout, by the words of messages.
    """

    def __init__(
        self,
        config: ReplayConfig,
        *,
        processes: int,
        rank: int,
        seed: int,
        generation_rows: int,
        recorded_with: Mapping[str, bool],
    ) -> None:
        self.config, self.processes, self.rank = config, processes, rank
        self.buffer: ReplayBuffer = config.make_buffer(processes=processes, rank=rank, generation_rows=generation_rows)
        self.rng = np.random.default_rng([seed, DRAW_STREAM, rank])
        self.counters: Counter[str] = Counter()
        self.generation_rows, self.recorded_with = generation_rows, dict(recorded_with)
        self._newest: Rollouts | None = None

    def add(self, rollouts: Rollouts, *, train_step: int) -> None:
        """Take a generation in, without the rollouts that no loss could take (`ostinato.usable`), which are counted.

        What a limiter does not let in is counted, too; the step may still `borrow` it.
        """
        usable_n, counts = usable_rollouts(rollouts)
        self.counters.update({f"refused.{reason}": counts[reason] for reason in REFUSED if counts[reason]})
        self.counters["generations"] += 1
        self._newest = rollouts.select(np.flatnonzero(usable_n))
        if not len(self._newest):
            return
        if not self.buffer.can_add(len(self._newest)):
            self.counters["refused.limiter"] += len(self._newest)
            return
        self.buffer.add(self._newest, train_step=train_step)

    def holds_back(self) -> bool:
        """Whether the limiter lets no generation in now: draws are due first."""
        return not self.buffer.can_add(self.generation_rows)

    def count_extra_generation(self, train_step: int) -> None:
        """Count a generation out of turn, and say the first time that there was one."""
        if not self.counters["extra_generations"]:
            logger.warning(
                "train step %d finds no batch among %d rollouts and generates out of turn (said once): where "
                "replay/extra_generations keeps rising nothing is saved; let retention, limiter or sampler give more",
                train_step,
                len(self.buffer),
            )
        self.counters["extra_generations"] += 1

    def draw(self, n: int, *, train_step: int) -> Draw | None:
        """n rollouts, or None when the buffer cannot give so many now: too few, too old, or held back by a sampler."""
        self.buffer.retain(train_step=train_step)
        if not self.buffer.can_sample(n):
            return None
        try:
            return self.buffer.sample(n, train_step=train_step, rng=self.rng)
        except DataError as error:  # nothing was drawn
            if not self.counters["refused_draws"]:
                logger.warning("no batch of %d rollouts at train step %d: %s (said once)", n, train_step, error)
            self.counters["refused_draws"] += 1
            return None

    def borrow(self, n: int, *, train_step: int) -> Draw:
        """n of the rollouts generated last, each once if there are enough: what a step takes that finds no batch.

        Raises `DataError` when none of them can be trained on.
        """
        self.counters["borrowed_batches"] += 1
        if self._newest is None or not len(self._newest):
            refused = {name: count for name, count in self.counters.items() if name.startswith("refused.")}
            raise DataError(
                f"no rollout to train on at train step {train_step}: the buffer holds {len(self.buffer)}, cannot give "
                f"{n}, and no rollout generated last can be trained on (so far {refused})"
            )
        few = len(self._newest) < n
        newest = ReplayBuffer(len(self._newest), sampler=Uniform(replacement=few), limiter=MinSize(1))
        newest.add(self._newest, train_step=train_step)
        return newest.sample(n, train_step=train_step, rng=self.rng)

    # ---------------------------------------------------------------- checkpoints

    def save(self, directory: Path) -> None:
        """Write buffer, generator and counters of this process."""
        directory.mkdir(parents=True, exist_ok=True)
        self.buffer.save(self._path(directory, "buffer"), draws=self.rng)
        state = {
            "format": FORMAT,
            "processes": self.processes,
            "added": self.buffer.added,
            "train_step": self.buffer.train_step,
            "counters": dict(self.counters),
            "recorded_with": self.recorded_with,
        }
        write_json(self._path(directory, "json"), state)

    def load(self, directory: Path) -> None:
        """Take over what `save` wrote. Raises `CheckpointError`."""
        files = self._path(directory, "json"), self._path(directory, "buffer")
        for path in files:
            if not path.exists():
                raise CheckpointError(
                    f"{path} is missing: the checkpoint was written without replay, with save_only_model, or by fewer "
                    "processes; begin anew from its weights (model=...), or go on from it without replay "
                    "(ReplayConfig(capacity=0))"
                )
        try:
            state = read_json_object(files[0])
            about = state["format"], state["processes"], state["added"], state["train_step"]
            recorded_with = {name: bool(state["recorded_with"][name]) for name in self.recorded_with}
            counters = Counter({str(name): int(count) for name, count in state["counters"].items()})
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise CheckpointError(f"{files[0]} is no state of a replaying trainer: {error}") from error
        if about[:2] != (FORMAT, self.processes):
            raise CheckpointError(
                f"{files[0]} is of format {about[0]} and {about[1]} processes, expected {FORMAT} and {self.processes}: "
                "each process draws from its own buffer, so resume with as many as wrote it"
            )
        for name, now in self.recorded_with.items():
            if recorded_with[name] != now:
                raise CheckpointError(
                    f"{files[0]}: its rollouts were recorded {_with(not now)} {name}, this trainer trains {_with(now)} "
                    "it, and what is stored of a rollout differs: resume with that setting as it was"
                )
        generators = self.buffer.load(files[1])
        if (self.buffer.added, self.buffer.train_step) != about[2:] or "draws" not in generators:
            raise CheckpointError(f"{files[1]} and {files[0]} are not of one checkpoint")
        self.rng, self.counters, self._newest = generators["draws"], counters, None

    def _path(self, directory: Path, suffix: str) -> Path:
        return directory / f"rank{self.rank}.{suffix}"


def _with(on: bool) -> str:
    return "with" if on else "without"
