"""What a person sees while a run goes on: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ostinato.config import RunConfig
from ostinato.errors import MissingExtraError
from ostinato.loop.session import Observer

PLAIN_EVERY_S = 10.0


def warn(line: str) -> None:
    """Say what a person should know though the run goes on."""
    print(f"ostinato: {line}", file=sys.stderr, flush=True)


class Progress:
    """The latest figures of a run, as (name, value) rows."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._start = time.monotonic()
        self._first_share: float | None = None
        self.rows: dict[str, str] = {}

    def update(self, record: Mapping[str, Any]) -> None:
        """Take in a record of metrics.jsonl."""
        if record["event"] == "evaluation":
            self.rows["accuracy"] = f"{record['sampled_accuracy']:.3f} sampled"
            if record["greedy_accuracy"] is not None:
                self.rows["accuracy"] += f", {record['greedy_accuracy']:.3f} greedy"
            return
        if record["event"] != "step":
            return
        loop, buffer = self._config.loop, self._config.buffer
        units = f" of {loop.compute_units:g}" if loop.compute_units else ""
        steps = f" of {loop.train_steps}" if loop.train_steps else ""
        self.rows |= {
            "step": f"{record['train_step']}{steps}",
            "compute": f"{record['compute']:.1f}{units} baseline updates",
            "reward": f"{record['reward']:.3f}",
            "buffer": f"{record['buffer_size']:.0f} of {record.get('buffer_capacity', buffer.capacity):.0f}",
            "staleness": f"{record['staleness']:.1f} steps",
            "uses": f"{record['trained'] / max(record['generated'], 1):.2f} a rollout",
            **_throughput(record),
            "ETA": self._eta(record),
        }

    def line(self) -> str:
        """All rows in one line."""
        return "  ".join(f"{name} {value}" for name, value in self.rows.items())

    def _eta(self, record: Mapping[str, Any]) -> str:
        loop = self._config.loop
        shares = [record["compute"] / loop.compute_units] if loop.compute_units else []
        shares += [record["train_step"] / loop.train_steps] if loop.train_steps else []
        share = max(shares)
        if self._first_share is None:
            self._first_share, self._start = share, time.monotonic()
        gained = share - self._first_share
        if gained <= 0:
            return "?"
        seconds = (time.monotonic() - self._start) / gained * max(0.0, 1 - share)
        return f"{int(seconds // 60)}:{int(seconds % 60):02d}"


def _throughput(record: Mapping[str, Any]) -> dict[str, str]:
    """Rates and faults, which runs in real time have."""
    if "generate_busy_share" not in record:
        return {}
    rows = {
        who: f"{record[f'{what}_tokens_per_s']:,.0f} tokens/s, {record[f'{what}_busy_share']:.0%} busy"
        for who, what in (("generators", "generate"), ("trainers", "train"))
    }
    if record["mu_measured"] is not None:
        rows["measured mu"] = f"{record['mu_measured']:.2f}"
    faults = {name.removeprefix("faults."): n for name, n in record.items() if name.startswith("faults.") and n}
    return rows | ({"faults": ", ".join(f"{n:.0f} {name}" for name, n in faults.items())} if faults else {})


@contextmanager
def display(config: RunConfig, title: str) -> Iterator[Observer]:
    """An observer for `Session` that shows its records while the block runs."""
    progress = Progress(config)
    if not sys.stdout.isatty():
        yield _plain(progress)
        return
    try:
        from rich.live import Live
        from rich.table import Table
    except ImportError:
        raise MissingExtraError("rich", "cli") from None

    def table() -> Any:
        grid = Table(title=title, show_header=False, title_justify="left")
        for name, value in progress.rows.items():
            grid.add_row(name, value)
        return grid

    with Live(table(), refresh_per_second=4, get_renderable=table):
        yield progress.update


def _plain(progress: Progress) -> Observer:
    last = float("-inf")

    def observe(record: Mapping[str, Any]) -> None:
        nonlocal last
        progress.update(record)
        if time.monotonic() - last >= PLAIN_EVERY_S and record["event"] == "step":
            last = time.monotonic()
            print(progress.line(), flush=True)

    return observe
