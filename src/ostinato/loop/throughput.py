"""How busy everybody is: tokens a second and shares of time, since this process took the run up.

Busy seconds are those of the ledger: measured around a request or a step, waiting left out. Time in which the run
stands still to evaluate does not count.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from ostinato.loop.clock import Event
from ostinato.loop.events import Admitted, Stepped
from ostinato.loop.ledger import Ledger
from ostinato.theory.accounting import compute_units


@dataclass(slots=True)
class Effort:
    """What one worker has done: rollouts, their completion tokens, busy seconds."""

    rollouts: int = 0
    tokens: int = 0
    busy_s: float = 0.0

    def add(self, rollouts: int, tokens: int, busy_s: float) -> None:
        """Count a piece of work."""
        self.rollouts += rollouts
        self.tokens += tokens
        self.busy_s += busy_s

    def rates(self, elapsed_s: float) -> dict[str, float]:
        """`tokens_per_s` while busy, `busy_share` of the time that has passed, and the counts."""
        return {
            "rollouts": self.rollouts,
            "tokens_per_s": self.tokens / self.busy_s if self.busy_s else 0.0,
            "busy_share": min(1.0, self.busy_s / elapsed_s) if elapsed_s else 0.0,
        }


class Throughput:
    """Watches the events of a run on the wall clock; W generators and the trainers, which work as one."""

    def __init__(self, generators: int) -> None:
        self._generators = [Effort() for _ in range(generators)]
        self._trainer = Effort()
        self.begin()

    def begin(self) -> None:
        """The run begins now."""
        self._begun, self._paused_s = time.monotonic(), 0.0

    def watch(self, event: Event) -> None:
        """Count what a generator has finished, or a train step."""
        if isinstance(event, Admitted):
            self._generators[event.generator].add(event.rollouts, event.tokens, event.generate_s)
        elif isinstance(event, Stepped):
            draw = event.step.draw
            self._trainer.add(len(draw), int(draw.rollouts.completion_lengths.sum()), event.train_s)

    def stood_still(self, seconds: float) -> None:
        """Leave these seconds out."""
        self._paused_s += seconds

    def numbers(self) -> dict[str, float]:
        """Sums of tokens a second and means of busy shares, by the names of docs/metrics.md."""
        elapsed_s = self._elapsed_s
        generators = [effort.rates(elapsed_s) for effort in self._generators]
        trainer = self._trainer.rates(elapsed_s)
        return {
            "generate_tokens_per_s": sum(rates["tokens_per_s"] for rates in generators),
            "generate_busy_share": sum(rates["busy_share"] for rates in generators) / len(generators),
            "train_tokens_per_s": trainer["tokens_per_s"],
            "train_busy_share": trainer["busy_share"],
        }

    def summary(self, ledger: Ledger, batch_size: int) -> dict[str, Any]:
        """Each worker's rates, for `throughput.json`; the measured mu and gamma of the whole run."""
        elapsed_s = self._elapsed_s
        return {
            "elapsed_s": elapsed_s,
            "generators": [effort.rates(elapsed_s) for effort in self._generators],
            "trainer": self._trainer.rates(elapsed_s),
            "mu_measured": ledger.mu_measured(),
            "gamma_measured": gamma_measured(ledger, batch_size),
        }

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._begun - self._paused_s


def gamma_measured(ledger: Ledger, batch_size: int) -> float | None:
    """Compute of a train step in baseline updates, at the measured mu; None before anything was trained.

    Where nobody ever waits it is (1 + W/T) / (1 + mu).  Source: arXiv 2604.08706, eq. 2.
    """
    mu = ledger.mu_measured()
    if mu is None:
        return None
    return compute_units(ledger.generated, ledger.trained, mu=mu, batch_size=batch_size) / ledger.train_step
