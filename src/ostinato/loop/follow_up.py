"""What a train step leads to in the store: priorities that are written back, rollouts that leave early."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ostinato.errors import DataError
from ostinato.governors import ReuseGovernor
from ostinato.loop.ledger import Ledger
from ostinato.loop.priorities import priorities_of
from ostinato.loop.sizing import Sizing
from ostinato.loop.stores import settle_sums
from ostinato.protocols import Draw, Store, Trained
from ostinato.stats import AgeStatistics


class FollowUp:
    """Remembers what the run has lately seen of each age (`ages`), and acts on the store.

    `reuse`: names rollouts that leave; None: nobody leaves by figures. `priority`: written back after each step, by the
    names of `loop.priorities`; None: nothing is. `prioritized`: draws go by priority. `correct_above`: a reward above
    it counts as correct in metrics. `sizing`: turns capacity and samples per insert; None: they stay. The rollouts of a
    dropped batch leave.
    """

    def __init__(
        self,
        *,
        correct_above: float = 0.0,
        reuse: ReuseGovernor | None = None,
        priority: str | None = None,
        prioritized: bool = False,
        sizing: Sizing | None = None,
    ) -> None:
        self.correct_above = correct_above
        self.ages = reuse.ages if reuse else AgeStatistics()
        self._reuse, self._priority, self._prioritized = reuse, priority, prioritized
        self.sizing = sizing
        self._removed_dropped = 0

    def act(self, store: Store, draw: Draw, trained: Trained, ledger: Ledger) -> dict[str, float]:
        """Follow up on a train step, which `ledger` has counted; returns the metrics of what was done.

        Priorities are written before anybody leaves, so that none is written to a rollout that has just left.
        """
        if self._priority is not None:
            store.update_priorities(draw.rollout_ids, priorities_of(self._priority, draw, trained))
        metrics: dict[str, float] = {}
        if self._reuse and trained.figures:
            leaving = self._reuse.remove(trained.figures, staleness=draw.staleness, rollout_ids=draw.rollout_ids)
            if len(leaving):
                store.remove(leaving)
            metrics |= self._reuse.metrics()
        elif trained.figures:
            self.ages.record(trained.figures, draw.staleness)
        if trained.dropped:
            self._removed_dropped += store.remove(draw.rollout_ids)
        if "gradients_dropped" in trained.metrics:
            metrics["reuse.removed_dropped"] = float(self._removed_dropped)
        if self.sizing:
            metrics |= self.sizing.act(store, draw, trained, ledger)
        if self._prioritized:
            settle_sums(store)
        return metrics

    def summary(self) -> dict[str, Any]:
        """`ages`: see `AgeStatistics.summary`; `drift`: nats a rollout and train step, None without aged rollouts."""
        return {"ages": self.ages.summary(), "drift": self.ages.drift()}

    def state_dict(self) -> dict[str, Any]:
        """Everything remembered, JSON-able."""
        kept = {"reuse": self._reuse.state_dict()} if self._reuse else {"ages": self.ages.state_dict()}
        sizes = {"sizing": self.sizing.state_dict()} if self.sizing else {}
        return {**kept, **sizes, "removed_dropped": self._removed_dropped}

    def load_state_dict(self, state: Mapping[str, Any], store: Store) -> None:
        """Inverse of `state_dict`; gives the store, still empty, the sizes it had. Raises `DataError` for the state of
        other governors."""
        kept = "reuse" if self._reuse else "ages"
        if kept not in state or "removed_dropped" not in state:
            raise DataError(f"state of the figures lacks {kept} or removed_dropped, got {sorted(state)}")
        (self._reuse or self.ages).load_state_dict(state[kept])
        self._removed_dropped = int(state["removed_dropped"])
        if self.sizing:
            self.sizing.restore(state.get("sizing", {}), store)
