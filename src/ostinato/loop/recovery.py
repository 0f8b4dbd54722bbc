"""A run goes on: what it has lost since its last checkpoint, and what a journaled buffer has kept of it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.buffer import ReplayBuffer
from ostinato.buffer.journal import JournaledBuffer
from ostinato.errors import CheckpointError
from ostinato.loop.clock import InFlight
from ostinato.loop.faults import FaultLog
from ostinato.loop.groups import Generated
from ostinato.loop.loop import Loop
from ostinato.loop.run_directory import train_step_of
from ostinato.protocols import Store

Resumed = dict[int, InFlight | Generated]
"""What generators were doing at a checkpoint, by rank."""


def open_journal(buffer: Store, directory: Path, checkpoint: Path | None) -> JournaledBuffer:
    """The buffer with its journal in `directory`, filled from what is there, to go on from `checkpoint`, None: from 0.

    Rollouts of weights newer than that leave, for these versions will come again: `recovered.rewound` counts them. With
    a checkpoint at every publication there are none. Raises `CheckpointError` when there is a checkpoint and no
    journal, and as `JournaledBuffer` does.
    """
    if checkpoint is not None and not directory.is_dir():
        raise CheckpointError(f"{directory} is missing: it held the rollouts that {checkpoint} stands on")
    train_step = 0 if checkpoint is None else train_step_of(checkpoint)
    assert isinstance(buffer, ReplayBuffer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that some leave: the run counts them among its faults
        return JournaledBuffer(buffer, directory, train_step=train_step)


def take_up(loop: Loop, resumed: Resumed, behind: Sequence[Mapping[str, Any]], faults: FaultLog) -> Resumed:
    """Let a loop that stands at its last checkpoint go on from there, and record what that costs.

    `behind`: the records of what it did after the checkpoint. Returns what generators have in hand still: nothing that
    its journal already holds. Rollouts that entered after the last record are not counted as lost without a journal.
    """
    steps = sum(record["event"] == "step" for record in behind)
    lost = max([0, *(int(record.get("generated", 0)) - loop.ledger.generated for record in behind)])
    recovered, store = 0, loop.parts.store
    if isinstance(store, JournaledBuffer):
        late, held = reconcile(loop, store)
        lost = store.recovered.rewound
        recovered = late - lost
        resumed = {rank: kept for rank, kept in resumed.items() if not held.intersection(_groups(kept))}
    if steps or lost or recovered:
        faults.record(
            "rolled_back",
            lost_train_steps=steps,
            lost_rollouts=lost,
            recovered_rollouts=recovered,
            reissued_groups=sum(len(groups) for groups in loop.groups_in_flight),
        )
    return resumed


def reconcile(loop: Loop, store: JournaledBuffer) -> tuple[int, set[int]]:
    """Bring a loop that stands at its checkpoint up to what its journal has: counters, and groups to be given out.

    A group that entered after the checkpoint counts as generated and is not generated again; one on its way is.
    Returns how many rollouts had entered since, and the groups that are held.
    Raises `CheckpointError` when the journal has seen fewer rollouts than the checkpoint.
    """
    ledger, per_request = loop.ledger, loop.config.groups_per_request
    late = store.added - ledger.generated
    if late < 0:
        raise CheckpointError(
            f"the journal has seen {store.added} rollouts, the checkpoint {ledger.generated}: they are of two runs"
        )
    if ledger.generated:
        ledger.busy_generate_s *= store.added / ledger.generated  # nobody wrote down how long the late ones took
    ledger.generated = store.added
    held = set(np.unique(store.columns["group_id"]).tolist())
    started = max([ledger.groups, *(group + 1 for group in held)])
    started += -started % per_request
    behind = [tuple(range(first, first + per_request)) for first in range(ledger.groups, started, per_request)]
    loop.reissue([groups for groups in (*loop.groups_in_flight, *behind) if not held.intersection(groups)])
    ledger.groups = started
    return late, held


def _groups(kept: InFlight | Generated) -> tuple[int, ...]:
    done: Generated = kept.result if isinstance(kept, InFlight) else kept
    return done.groups
