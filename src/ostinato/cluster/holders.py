"""Who holds the buffer when it is not the driver: a process of its own, or each trainer a shard."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from ostinato.buffer import ShardedBuffer
from ostinato.config import RunConfig
from ostinato.loop.stores import build_store
from ostinato.protocols import Draw
from ostinato.rollouts import ROW_COLUMNS, TOKEN_COLUMNS, Rollouts

DRAW_COLUMNS = tuple(item.name for item in fields(Draw) if item.name != "rollouts")

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class DrawElsewhere(Draw):
    """A draw whose payload lies in the object store: `payload`, one reference a shard in the order of the rows.

    Of `rollouts` every row column and all lengths are right; tokens, log-probs and masks are zeros that take no memory,
    extras are left out.
    """

    payload: tuple[ray.ObjectRef[Any], ...]


class Holder:
    """Holds a store, or one of its shards, for calls from another process."""

    _store: Any

    def hold(self, config: RunConfig, index: int) -> None:
        """Begin with an empty one: shard `index` where the recipe has shards."""
        store = build_store(config.buffer, config.loop)
        self._store = store.shards[index] if isinstance(store, ShardedBuffer) else store

    def ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        """The method of the store."""
        return getattr(self._store, method)(*arguments, **named)

    def process_id(self) -> int:
        """Of the process that holds it."""
        return os.getpid()

    def size(self) -> int:
        """Rollouts held."""
        return len(self._store)

    def draw(self, n: int, train_step: int, seed: int) -> tuple[Arrays, Draw]:
        """(what the driver needs of a draw, the draw): two objects, of which only the first goes to the driver."""
        draw = self._store.sample(n, train_step=train_step, rng=np.random.default_rng(seed))
        return outline(draw), draw


def outline(draw: Draw) -> Arrays:
    """Columns of the draw, row columns of its rollouts, and `lengths`."""
    arrays = {name: getattr(draw, name) for name in DRAW_COLUMNS}
    return arrays | {name: getattr(draw.rollouts, name) for name in ROW_COLUMNS} | {"lengths": draw.rollouts.lengths}


def drawn_elsewhere(parts: list[Arrays], payload: tuple[ray.ObjectRef[Any], ...]) -> DrawElsewhere:
    """One draw out of the outlines of several shards, in order."""
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    offsets = np.concatenate([[0], np.cumsum(arrays.pop("lengths"))])
    blank = {name: np.broadcast_to(np.zeros((), kind), offsets[-1]) for name, kind in TOKEN_COLUMNS.items()}
    columns = {name: arrays.pop(name) for name in DRAW_COLUMNS}
    rollouts = Rollouts.trusted(offsets=offsets, **blank, **arrays, extras={})
    return DrawElsewhere(rollouts, **columns, payload=payload)
