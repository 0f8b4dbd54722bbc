"""torchrl: ragged rollouts as a stack of TensorDicts, or padded to the longest there may be in one tensor a field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import LazyStackedTensorDict, TensorDict
from torchrl import logger
from torchrl.data import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    PrioritizedSampler,
    TensorDictReplayBuffer,
)

from .batches import Rows, unpadded
from .padding import NUMBERS, TOKENS, padded_arrays
from .profiles import Profile, Record

logger.setLevel("WARNING")


class LazyStack:
    """`LazyStackStorage`: one TensorDict a rollout."""

    def __init__(self, profile: Profile, n: int) -> None:
        self.buffer = TensorDictReplayBuffer(storage=LazyStackStorage(n), batch_size=512)

    def convert(self, records: Sequence[Record]) -> LazyStackedTensorDict:
        """A TensorDict a rollout, stacked lazily."""
        return LazyStackedTensorDict(*map(_tensor_dict, records), stack_dim=0)

    def insert(self, converted: LazyStackedTensorDict) -> None:
        """`ReplayBuffer.extend`."""
        self.buffer.extend(converted)

    def packed(self, n: int) -> dict[str, Any]:
        """Draw, then concatenate every field of the stack."""
        stack = self.buffer.sample(n)
        batch = {name: stack.get(name, as_list=True) for name in TOKENS}
        lengths = torch.tensor([len(row) for row in batch["tokens"]])
        joined = {name: torch.cat(rows) for name, rows in batch.items()}
        return joined | {"lengths": lengths} | {name: stack.get(name) for name in NUMBERS}

    def padded(self, n: int) -> dict[str, Any]:
        """Draw, then pad every field of the stack."""
        stack = self.buffer.sample(n)
        batch = {name: stack.get(name, as_padded_tensor=True) for name in TOKENS}
        lengths = torch.tensor([len(row) for row in stack.get("tokens", as_list=True)])
        return batch | {"lengths": lengths} | {name: stack.get(name) for name in NUMBERS}

    def packed_rows(self, batch: dict[str, Any]) -> Rows:
        """For the check."""
        return Rows(*(np.asarray(batch[name]) for name in (*TOKENS, "lengths", "uid")))

    def padded_rows(self, batch: dict[str, Any]) -> Rows:
        """For the check."""
        return unpadded(batch, np.asarray(batch["lengths"]), np.asarray(batch["uid"]))


class Padded:
    """`LazyTensorStorage`: one zero-padded tensor a field."""

    storage: type[Any] = LazyTensorStorage
    shared = False

    def __init__(self, profile: Profile, n: int) -> None:
        self._profile = profile
        self.buffer = TensorDictReplayBuffer(storage=self.storage(n), batch_size=512, shared=self.shared)

    def convert(self, records: Sequence[Record]) -> TensorDict:
        """Pad."""
        arrays = padded_arrays(self._profile, records)
        return TensorDict({name: torch.from_numpy(a) for name, a in arrays.items()}, batch_size=[len(records)])

    def insert(self, converted: TensorDict) -> None:
        """`ReplayBuffer.extend`, or `add` for one rollout."""
        if len(converted) == 1:
            self.buffer.add(converted[0])
        else:
            self.buffer.extend(converted)

    def padded(self, n: int) -> TensorDict:
        """`ReplayBuffer.sample`."""
        return self.buffer.sample(n)

    def packed(self, n: int) -> dict[str, torch.Tensor]:
        """A padded batch without its padding."""
        batch = self.padded(n)
        inside = torch.arange(self._profile.longest) < batch["lengths"].reshape(-1, 1)
        packed = {name: batch[name][inside] for name in TOKENS}
        return packed | {name: batch[name] for name in ("lengths", *NUMBERS)}

    def packed_rows(self, batch: dict[str, torch.Tensor]) -> Rows:
        """For the check."""
        lengths, uid = (np.asarray(batch[name]).reshape(-1).astype(np.int64) for name in ("lengths", "uid"))
        return Rows(*(np.asarray(batch[name]) for name in TOKENS), lengths, uid)

    def padded_rows(self, batch: TensorDict) -> Rows:
        """For the check."""
        return unpadded(batch, np.asarray(batch["lengths"]), np.asarray(batch["uid"]))


class Prioritized(Padded):
    """`PrioritizedSampler` over `LazyTensorStorage`, exponent 0.6, correction 0.4."""

    def __init__(self, profile: Profile, n: int) -> None:
        self._profile = profile
        sampler = PrioritizedSampler(n, alpha=0.6, beta=0.4)
        self.buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(n), sampler=sampler, batch_size=512)

    def update(self, batch: TensorDict, priorities: NDArray[np.float64]) -> None:
        """Write new priorities back."""
        self.buffer.update_priority(batch["index"], torch.from_numpy(priorities))


class Shared(Padded):
    """`LazyMemmapStorage` between processes."""

    storage = LazyMemmapStorage
    shared = True


def _tensor_dict(record: Record) -> TensorDict:
    rows = {name: torch.from_numpy(record[name]) for name in TOKENS}
    return TensorDict(rows | {name: torch.tensor(record[name], dtype=_DTYPES[name]) for name in NUMBERS}, batch_size=[])


_DTYPES = {name: torch.from_numpy(np.empty(0, dtype)).dtype for name, dtype in NUMBERS.items()}
