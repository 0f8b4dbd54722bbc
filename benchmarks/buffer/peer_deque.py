"""The pseudo-code of the papers: a deque of records, `random`, `torch.cat` and `pad_sequence`."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from .batches import Rows, unpadded
from .profiles import Profile, Record

TOKENS = ("tokens", "mask", "logprobs")
NUMBERS = {
    "advantage": torch.float32,
    "reward": torch.float32,
    "group": torch.int64,
    "uid": torch.int64,
    "version": torch.int32,
}


class Deque:
    """Keeps references to what it is given, as the pseudo-code does."""

    def __init__(self, profile: Profile, n: int) -> None:
        self.items: deque[dict[str, Any]] = deque(maxlen=n)
        self._random = random.Random(0)

    def convert(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Tensors over the records' arrays."""
        return [{**record, **{name: torch.from_numpy(record[name]) for name in TOKENS}} for record in records]

    def insert(self, converted: list[dict[str, Any]]) -> None:
        """Append."""
        self.items.extend(converted)

    def packed(self, n: int) -> dict[str, torch.Tensor]:
        """Draw with replacement, `torch.cat`."""
        return self._drawn(n, torch.cat)

    def padded(self, n: int) -> dict[str, torch.Tensor]:
        """Draw with replacement, `pad_sequence`."""
        return self._drawn(n, lambda rows: pad_sequence(rows, batch_first=True))

    def _drawn(self, n: int, join: Callable[[list[torch.Tensor]], torch.Tensor]) -> dict[str, torch.Tensor]:
        drawn = self._random.choices(self.items, k=n)
        batch = {name: join([item[name] for item in drawn]) for name in TOKENS}
        batch["lengths"] = torch.tensor([len(item["tokens"]) for item in drawn])
        return batch | {name: torch.tensor([i[name] for i in drawn], dtype=dtype) for name, dtype in NUMBERS.items()}

    def packed_rows(self, batch: dict[str, torch.Tensor]) -> Rows:
        """For the check."""
        return Rows(*(np.asarray(batch[name]) for name in (*TOKENS, "lengths", "uid")))

    def padded_rows(self, batch: dict[str, torch.Tensor]) -> Rows:
        """For the check."""
        return unpadded(batch, np.asarray(batch["lengths"]), np.asarray(batch["uid"]))
