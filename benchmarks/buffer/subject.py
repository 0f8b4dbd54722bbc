"""ostinato's buffer as a contestant. Rollout ids equal the records' uid, since both count from 0."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer import PaddedDraw, ReplayBuffer, Workspace
from ostinato.protocols import Draw
from ostinato.ragged import offsets_of
from ostinato.rollouts import Rollouts

from .batches import Rows, unpadded
from .profiles import Record, Source

NUMBA, NUMPY, TWO_THREADS = "ostinato", "ostinato, numpy", "ostinato, 2 threads"
TRAIN_STEP = 1
NUMBERS = ("prompt_length", "group", "reward", "advantage", "version")


class Ostinato:
    """A `ReplayBuffer` of n rollouts; `settings` as there."""

    def __init__(self, n: int, *, seed: int = 0, **settings: Any) -> None:
        self.buffer = ReplayBuffer(n, **settings)
        self.rng = np.random.default_rng(seed)

    def convert(self, records: Sequence[Record]) -> Rollouts:
        """Pack whole rows, as an engine's adapter would: columns in, checked by the constructor."""
        tokens = [record["tokens"] for record in records]
        n, numbers = len(records), {name: np.array([record[name] for record in records]) for name in NUMBERS}
        zeros, steps, ones = np.zeros(n), np.zeros(n, np.int64), np.ones(n, np.float32)
        return Rollouts(
            tokens=np.concatenate(tokens),
            loss_mask=np.concatenate([record["mask"] for record in records]),
            behavior_logprobs=np.concatenate([record["logprobs"] for record in records]),
            offsets=offsets_of([len(row) for row in tokens]),
            prompt_length=numbers["prompt_length"].astype(np.int32),
            prompt_id=numbers["group"],
            group_id=numbers["group"],
            reward=numbers["reward"],
            group_reward_mean=zeros,
            group_reward_std=zeros,
            advantage=numbers["advantage"],
            policy_version_min=numbers["version"],
            policy_version_max=numbers["version"],
            birth_step=steps,
            truncated=np.zeros(n, np.bool_),
            temperature=ones,
            top_p=ones,
            top_k=np.zeros(n, np.int32),
            source=np.zeros(n, "<U1"),
        )

    def convert_completions(self, records: Sequence[Record]) -> Rollouts:
        """The same through `Rollouts.from_completions`, which takes prompts and completions apart."""
        prompts = [record["prompt_length"] for record in records]
        return Rollouts.from_completions(
            [record["tokens"][:p] for record, p in zip(records, prompts, strict=True)],
            [record["tokens"][p:] for record, p in zip(records, prompts, strict=True)],
            [record["logprobs"][p:] for record, p in zip(records, prompts, strict=True)],
            group_id=[record["group"] for record in records],
            prompt_id=[record["group"] for record in records],
            advantage=[record["advantage"] for record in records],
            reward=[record["reward"] for record in records],
            policy_version_min=[record["version"] for record in records],
        )

    def insert(self, converted: Rollouts) -> NDArray[np.int64]:
        """`ReplayBuffer.add`."""
        return self.buffer.add(converted, train_step=TRAIN_STEP)

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
