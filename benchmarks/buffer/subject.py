"""ostinato's buffer as a contestant. Rollout ids equal the records' uid, since both count from 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer import PaddedDraw, ReplayBuffer, Workspace
from ostinato.protocols import Draw
from ostinato.rollouts import Rollouts

from .batches import Rows, unpadded
from .padding import TOKENS
from .profiles import Record, Source

NUMBA, NUMPY, TWO_THREADS = "ostinato", "ostinato, numpy", "ostinato, 2 threads"
TRAIN_STEP = 1
NUMBERS = {
    "prompt_length": "prompt_length",
    "prompt_id": "group",
    "group_id": "group",
    "reward": "reward",
    "advantage": "advantage",
    "policy_version_min": "version",
}
"""Columns and what they are called in records."""


class Ostinato:
    """A `ReplayBuffer` of n rollouts; `settings` as there."""

    def __init__(self, n: int, *, seed: int = 0, **settings: Any) -> None:
        self.buffer = ReplayBuffer(n, **settings)
        self.rng = np.random.default_rng(seed)

    def convert(self, records: Sequence[Record]) -> Rollouts:
        """`Rollouts.from_rows`: whole rows, as an engine's adapter would pack them."""
        rows, columns = listed(records)
        return Rollouts.from_rows(*rows, **columns)

    def convert_completions(self, records: Sequence[Record]) -> Rollouts:
        """The same through `Rollouts.from_completions`, which takes prompts and completions apart."""
        prompts = [record["prompt_length"] for record in records]
        return Rollouts.from_completions(
            [record["tokens"][:p] for record, p in zip(records, prompts, strict=True)],
            [record["tokens"][p:] for record, p in zip(records, prompts, strict=True)],
            [record["logprobs"][p:] for record, p in zip(records, prompts, strict=True)],
            **{column: [record[name] for record in records] for column, name in NUMBERS.items()},
        )

    def insert(self, converted: Rollouts) -> NDArray[np.int64]:
        """`ReplayBuffer.add`."""
        return self.buffer.add(converted, train_step=TRAIN_STEP)

    def insert_records(self, records: Sequence[Record]) -> NDArray[np.int64]:
        """`ReplayBuffer.add_rows`: conversion and all."""
        rows, columns = listed(records)
        return self.buffer.add_rows(*rows, train_step=TRAIN_STEP, **columns)

    def insert_one(self, record: Record) -> int:
        """`ReplayBuffer.add_one`."""
        columns = {column: record[name] for column, name in NUMBERS.items()}
        rows = record["tokens"], record["mask"], record["logprobs"]
        return self.buffer.add_one(*rows, train_step=TRAIN_STEP, **columns)

    def packed(self, n: int, out: Workspace | None = None) -> Draw:
        """`ReplayBuffer.sample`."""
        return self.buffer.sample(n, train_step=TRAIN_STEP, rng=self.rng, out=out)

    def padded(self, n: int, out: Workspace | None = None) -> PaddedDraw:
        """`ReplayBuffer.sample_padded` in its default layout."""
        return self.buffer.sample_padded(n, train_step=TRAIN_STEP, rng=self.rng, out=out)

    def packed_rows(self, batch: Draw) -> Rows:
        """For the check."""
        drawn = batch.rollouts
        return Rows(drawn.tokens, drawn.loss_mask, drawn.behavior_logprobs, drawn.lengths, batch.rollout_ids)

    def padded_rows(self, batch: PaddedDraw) -> Rows:
        """For the check."""
        arrays = {"tokens": batch.tokens, "mask": batch.loss_mask, "logprobs": batch.behavior_logprobs}
        return unpadded(arrays, batch.lengths, batch.rollout_ids, batch.starts)


def listed(records: Sequence[Record]) -> tuple[list[list[Any]], dict[str, list[Any]]]:
    """The rows of tokens, masks and log-probs, and the row columns."""
    rows = [[record[name] for record in records] for name in TOKENS]
    return rows, {column: [record[name] for record in records] for column, name in NUMBERS.items()}


def has_numba() -> bool:
    """Whether the compiled kernels are installed."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


def subjects(source: Source) -> dict[str, Callable[[], Ostinato]]:
    """The buffer with compiled kernels, with two threads, and with numpy alone."""
    n = len(source)
    return {
        NUMBA: lambda: Ostinato(n, kernels="numba"),
        TWO_THREADS: lambda: Ostinato(n, kernels="numba", threads=2),
        NUMPY: lambda: Ostinato(n, kernels="numpy"),
    }
