"""A buffer whose capacity or samples per insert are `auto`: the control's dials, turned in a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ostinato.buffer import ReplayBuffer, ShardedBuffer
from ostinato.config import BufferConfig, LoopConfig, RunConfig
from ostinato.errors import DataError, RunError
from ostinato.governors import BufferControl, Change, Spent, buffer_control
from ostinato.governors.estimates import spent_from
from ostinato.loop.ledger import Ledger
from ostinato.loop.pace import MeteredPace, SteadyPace
from ostinato.loop.stores import limiter_of
from ostinato.protocols import Draw, Store, Trained


class Sizing:
    """Shows the control every train step and turns the dials of the store as it says.

    `pace` meters modelled durations on the virtual clock, whose mu no real second may enter; None on the others.
    """

    def __init__(self, control: BufferControl, buffer: BufferConfig, loop: LoopConfig) -> None:
        self._control, self._buffer, self._loop = control, buffer, loop
        virtual = loop.clock == "virtual"
        self.pace = MeteredPace(SteadyPace(loop.mu, loop.batch_size, loop.trainers), loop.trainers) if virtual else None
        self._change: Change | None = None

    @property
    def buffer(self) -> BufferConfig:
        """The buffer section with what is in force in place of `auto`."""
        dials = self._control.dials
        return replace(self._buffer, capacity=dials.capacity, samples_per_insert=dials.samples_per_insert)

    def act(self, store: Store, draw: Draw, trained: Trained, ledger: Ledger) -> dict[str, float]:
        """Follow up on a train step; returns the metrics of the control."""
        spent = Spent(ledger.busy_generate_s, ledger.generated, ledger.busy_train_s, ledger.trained)
        totals = spent if self.pace is None else self.pace.totals
        change = self._control.act(ledger.train_step, totals, trained.figures, draw.staleness)
        if change is not None:
            self._turn(store)
            self._change = change
        return self._control.metrics()

    def take_change(self) -> Change | None:
        """What changed since the last call."""
        change, self._change = self._change, None
        return change

    def state_dict(self) -> dict[str, Any]:
        """Everything remembered, JSON-able."""
        metered = {} if self.pace is None else {"metered": list(self.pace.totals)}
        return {"control": self._control.state_dict(), **metered}

    def restore(self, state: Mapping[str, Any], store: Store) -> None:
        """Inverse of `state_dict`, and the store's dials as they were then. Raises `DataError`."""
        if "control" not in state or (self.pace is not None and "metered" not in state):
            raise DataError(f"state of the buffer's sizes lacks control or metered, got {sorted(state)}")
        self._control.load_state_dict(state["control"])
        if self.pace is not None:
            self.pace.totals = spent_from(state["metered"])
        self._turn(store)

    def _turn(self, store: Store) -> None:
        sizes = self.buffer
        assert isinstance(sizes.capacity, int)
        if isinstance(store, ShardedBuffer):
            held = store.shards[0]
            if store.capacity != sizes.capacity:
                store.resize(sizes.capacity)
        elif isinstance(store, ReplayBuffer):
            held = store
            if store.capacity != sizes.capacity:
                store.resize(sizes.capacity, store.capacity_bytes)
        else:
            raise RunError(f"a {type(store).__name__} cannot be resized: give buffer.capacity and samples_per_insert")
        limiter = limiter_of(sizes, self._loop)
        if held.limiter != limiter:  # a new one forgives every debt, an equal one none
            store.limit(limiter)


def sizing_of(config: RunConfig) -> Sizing | None:
    """The sizing that a recipe asks for; None where every size is a number."""
    control = buffer_control(config)
    return None if control is None else Sizing(control, config.buffer, config.loop)
