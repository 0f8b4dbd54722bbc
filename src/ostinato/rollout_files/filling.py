"""A replay buffer out of a file of rollouts."""

from __future__ import annotations

from ostinato.buffer import ReplayBuffer
from ostinato.errors import ConfigError, DataError
from ostinato.rollout_files.pieces import pieces
from ostinato.rollout_files.settings import LATEST
from ostinato.rollout_files.stored import Stored


def filled_buffer(
    stored: Stored, *, capacity: int | None = None, capacity_bytes: int | None = None, train_step: int | None = None
) -> ReplayBuffer:
    """A buffer that holds what is stored, added in its order at one train step; the newest stay where it is too small.

    `capacity` in rollouts, left out: what is there. `train_step`: left out, the newest that is known. Raises
    `ConfigError` for bounds that cannot be and a train step before that of a stored policy, `DataError` when nothing is
    stored or a rollout cannot be in a buffer.
    """
    newest = stored.train_step
    if train_step is not None and train_step < newest:
        raise ConfigError(f"train step {train_step} comes before {newest}, the newest in what is stored")
    if train_step is not None and train_step > LATEST:
        raise ConfigError(f"train step is {train_step}, expected below 2^62")
    if newest > LATEST:
        raise DataError(f"the newest train step in what is stored is {newest}, expected below 2^62")
    buffer = ReplayBuffer(len(stored) if capacity is None else capacity, capacity_bytes=capacity_bytes)
    for part in stored.parts():
        # A quarter of the bytes, for a buffer counts its own columns too.
        for piece in pieces(part, rollouts=buffer.capacity, nbytes=capacity_bytes and capacity_bytes // 4):
            buffer.add(piece, train_step=newest if train_step is None else train_step)
    return buffer
