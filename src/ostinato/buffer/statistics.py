"""What a buffer counts as it goes: cheap sums, read by `ReplayBuffer.metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.columns import Columns
from ostinato.buffer.tally import SUMS

Int = NDArray[np.int64]

LENGTH_BUCKETS = np.array([0, 128, 512, 2048, 8192, 32768])
"""Lower ends, in tokens, of the buckets in which unused departures are counted."""

FOLD = 256
"""Draws and departures are noted, and added up this many at a time."""

STARVED_DRAWS = 20
"""A source that was drawn before and is absent from this many draws in a row is reported as starved."""


class BufferStatistics:
    """Sums over draws and departures. `correct_above`: a reward above it counts as correct."""

    def __init__(self, correct_above: float = 0.0) -> None:
        self.correct_above = correct_above
        self._departed: dict[int, int] = {}  # uses: rollouts that left with so many, not yet asked for
        self._unused_by_length = np.zeros(len(LENGTH_BUCKETS), np.int64)
        self._counters = dict.fromkeys(
            ("admitted", "stale_updates", "left", "left_uses", "left_unused", "draws", "drawn"), 0
        )
        self._sums = np.zeros(len(SUMS))
        self._noted: list[tuple[NDArray[np.float64], Int]] = []
        self._leaving: list[tuple[Int, NDArray[Any]]] = []
        self._by_rule: dict[str, int] = {}
        self._by_source = np.zeros(0, np.int64)
        self._absent = np.zeros(0, np.int64)

    def admitted(self, n: int, refused: Mapping[str, int]) -> None:
        """Count an add, and what each admission rule refused."""
        self._counters["admitted"] += n
        for name, count in refused.items():
            self._by_rule[f"refused.{name}"] = self._by_rule.get(f"refused.{name}", 0) + count

    def expired(self, name: str, n: int) -> None:
        """Count rollouts that a retention rule no longer kept."""
        self._by_rule[f"expired.{name}"] = self._by_rule.get(f"expired.{name}", 0) + n

    def expiries(self) -> str:
        """In words, how many each retention rule has let go; empty: none."""
        rules = [(name.partition(".")[2], n) for name, n in self._by_rule.items() if name.startswith("expired.")]
        return ", ".join(f"{n} left by {name}" for name, n in rules)

    def stale(self, n: int) -> None:
        """Count write-backs to rollouts that had left."""
        self._counters["stale_updates"] += n

    def left(self, uses: Int, lengths: NDArray[Any]) -> None:
        """Count departures: their uses and tokens."""
        self._leaving.append((uses, lengths))
        if len(self._leaving) == FOLD:
            self._fold()

    def drawn(self, n: int, sums: NDArray[np.float64], by_source: Int) -> None:
        """Count a draw of n rows, given what `Kernels.draw` returned."""
        self._counters["draws"] += 1
        self._counters["drawn"] += n
        self._noted.append((sums, by_source))
        if len(self._noted) == FOLD:
            self._fold()

    def take_departures(self) -> Int:
        """Uses of the rollouts that left since the last call, ascending."""
        uses, counts = self._pending()
        self._departed = {}
        return np.repeat(uses, counts)

    def _pending(self) -> Int:
        """Uses, ascending, and how many left with so many: (2, k)."""
        self._fold()
        return np.array(sorted(self._departed.items()), np.int64).reshape(-1, 2).T

    def _fold(self) -> None:
        """Add up draws and departures that were only noted."""
        if self._noted:
            self._fold_draws()
        if not self._leaving:
            return
        uses, lengths = (np.concatenate(columns) for columns in zip(*self._leaving, strict=True))
        self._leaving = []
        for number, count in zip(*(a.tolist() for a in np.unique(uses, return_counts=True)), strict=True):
            self._departed[number] = self._departed.get(number, 0) + count
        self._counters["left"] += len(uses)
        self._counters["left_uses"] += int(uses.sum())
        unused = lengths[uses == 0]
        self._counters["left_unused"] += len(unused)
        np.add.at(self._unused_by_length, np.searchsorted(LENGTH_BUCKETS, unused, "right") - 1, 1)

    def _fold_draws(self) -> None:
        sums, counts = zip(*self._noted, strict=True)
        self._noted = []
        drawn = np.zeros((len(counts), max(len(self._by_source), *map(len, counts))), np.int64)
        for row, count in zip(drawn, counts, strict=True):
            row[: len(count)] = count
        new = np.zeros(drawn.shape[1] - len(self._by_source), np.int64)
        self._sums += np.sum(sums, 0)
        self._by_source = np.concatenate([self._by_source, new]) + drawn.sum(0)
        since = (drawn[::-1] > 0).argmax(0)  # draws since the last one with this source
        absent = np.concatenate([self._absent, new]) + len(drawn)
        self._absent = np.where(drawn.any(0), since, absent)

    def metrics(self, columns: Columns) -> dict[str, float]:
        """Everything by name: since the beginning, and about the rows held now."""
        self._fold()
        count, sums = self._counters, dict(zip(SUMS, self._sums.tolist(), strict=True))
        drawn, left = max(count["drawn"], 1), max(count["left"], 1)
        result = {name: float(count[name]) for name in ("admitted", "stale_updates", "left", "draws", "drawn")}
        result |= {name: float(number) for name, number in self._by_rule.items()}
        result |= {
            "uses_when_left": count["left_uses"] / left,
            "left_unused_fraction": count["left_unused"] / left,
            "drawn_staleness": sums["staleness"] / drawn,
            "drawn_unique_fraction": 1 - sums["repeats"] / drawn,
            "drawn_correct_fraction": sums["correct"] / drawn,
            "drawn_informative_fraction": sums["informative"] / drawn,
            "drawn_new_fraction": sums["new"] / drawn,
            "steps_since_last_use": sums["since"] / max(count["drawn"] - sums["new"], 1),
        }
        for lower, number in zip(LENGTH_BUCKETS.tolist(), self._unused_by_length.tolist(), strict=True):
            result[f"left_unused_from_{lower}_tokens"] = float(number)
        return result | self._held(columns) | self._sources(columns)

    def starved(self, columns: Columns) -> list[str]:
        """Data sets that used to be drawn, and have not been for `STARVED_DRAWS` draws in a row."""
        self._fold()
        codes = np.flatnonzero((self._by_source > 0) & (self._absent >= STARVED_DRAWS))
        return [columns.sources[code] for code in codes.tolist()]

    def _held(self, columns: Columns) -> dict[str, float]:
        live = columns.live()
        if not len(live):
            return {"never_used_fraction": 0.0, "staleness": 0.0, "correct_fraction": 0.0, "informative_fraction": 0.0}
        age = columns.train_step - columns["policy_version_min"][live]
        return {
            "never_used_fraction": float(np.mean(columns["uses"][live] == 0)),
            "staleness": float(age.mean()),
            "staleness_max": float(age.max()),
            "correct_fraction": float(np.mean(columns["reward"][live] > self.correct_above)),
            "informative_fraction": float(np.mean(columns["group_reward_std"][live] > 0)),
        }

    def _sources(self, columns: Columns) -> dict[str, float]:
        names, live = columns.sources, columns.live()
        held = np.bincount(columns["source_code"][live], minlength=len(names)) / max(len(live), 1)
        drawn = self._by_source / max(int(self._by_source.sum()), 1)
        result = {"starved_sources": float(len(self.starved(columns)))}
        for code, name in enumerate(names):
            result[f"source_share.{name}"] = float(held[code])
            result[f"drawn_source_share.{name}"] = float(drawn[code]) if code < len(drawn) else 0.0
        return result

    # ---------------------------------------------------------------- state

    def state_arrays(self) -> dict[str, NDArray[Any]]:
        """Everything counted, as plain arrays."""
        return {
            "departed": self._pending(),
            "left_unused_by_length": self._unused_by_length.copy(),
            "counters": np.array(list(self._counters.values()), np.int64),
            "sums": self._sums.copy(),
            "rule_names": np.array(list(self._by_rule), np.str_),
            "rule_counts": np.array(list(self._by_rule.values()), np.int64),
            "drawn_by_source": self._by_source.copy(),
            "absent_draws": self._absent.copy(),
        }

    def load_state_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Inverse of `state_arrays`. Raises `KeyError` or `ValueError` when something is missing or of another size."""
        departed: dict[int, int] = dict(np.array(arrays["departed"], np.int64).reshape(2, -1).T.tolist())  # type: ignore[arg-type]
        counters = dict(zip(self._counters, arrays["counters"].tolist(), strict=True))
        sums = np.array(arrays["sums"], np.float64).reshape(self._sums.shape)
        unused = np.array(arrays["left_unused_by_length"], np.int64).reshape(self._unused_by_length.shape)
        self._by_rule = dict(zip(arrays["rule_names"].tolist(), arrays["rule_counts"].tolist(), strict=True))
        self._noted, self._leaving = [], []
        self._departed, self._counters, self._sums, self._unused_by_length = departed, counters, sums, unused
        self._by_source = np.array(arrays["drawn_by_source"], np.int64)
        self._absent = np.array(arrays["absent_draws"], np.int64)
