"""cpprb: arrays of a fixed shape in C++, so every rollout is padded to the longest there may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cpprb
import numpy as np
from numpy.typing import NDArray

from .batches import Rows, unpadded
from .padding import NUMBERS, TOKENS, Arrays, padded_arrays
from .profiles import Profile, Record


def shapes(profile: Profile) -> dict[str, dict[str, Any]]:
    """cpprb's description of the fields."""
    described: dict[str, dict[str, Any]] = {
        name: {"shape": profile.longest, "dtype": dtype} for name, dtype in TOKENS.items()
    }
    return described | {name: {"dtype": dtype} for name, dtype in {"lengths": np.int32, **NUMBERS}.items()}


class Uniform:
    """`cpprb.ReplayBuffer`."""

    def __init__(self, profile: Profile, n: int) -> None:
        self._profile = profile
        self.buffer = cpprb.ReplayBuffer(n, shapes(profile))

    def convert(self, records: Sequence[Record]) -> Arrays:
        """Pad."""
        return padded_arrays(self._profile, records)

    def insert(self, converted: Arrays) -> None:
        """`ReplayBuffer.add`."""
        self.buffer.add(**converted)

    def padded(self, n: int) -> Arrays:
        """`ReplayBuffer.sample`."""
        sampled: Arrays = self.buffer.sample(n)
        return sampled

    def packed(self, n: int) -> Arrays:
        """A padded batch without its padding."""
        batch = self.padded(n)
        inside = np.arange(self._profile.longest) < batch["lengths"].reshape(-1, 1)
        return batch | {name: batch[name][inside] for name in TOKENS}

    def packed_rows(self, batch: Arrays) -> Rows:
        """For the check."""
        lengths, uid = (batch[name].reshape(-1).astype(np.int64) for name in ("lengths", "uid"))
        return Rows(*(batch[name] for name in TOKENS), lengths, uid)

    def padded_rows(self, batch: Arrays) -> Rows:
        """For the check."""
        return unpadded(batch, batch["lengths"], batch["uid"])


class Prioritized(Uniform):
    """`cpprb.PrioritizedReplayBuffer`, exponent 0.6, correction 0.4."""

    def __init__(self, profile: Profile, n: int) -> None:
        self._profile = profile
        self.buffer = cpprb.PrioritizedReplayBuffer(n, shapes(profile), alpha=0.6)

    def padded(self, n: int) -> Arrays:
        """Draw by priority, with importance weights."""
        sampled: Arrays = self.buffer.sample(n, beta=0.4)
        return sampled

    def update(self, batch: Arrays, priorities: NDArray[np.float64]) -> None:
        """Write new priorities back."""
        self.buffer.update_priorities(batch["indexes"], priorities)
