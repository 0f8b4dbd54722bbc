"""The clock of a buffer set back, when training goes on from a checkpoint older than what the buffer holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ostinato.buffer.keeper import Keeper

STEPS = ("insert_step", "last_use_step", "birth_step")


def rewind(buffer: Keeper, train_step: int) -> int:
    """Make `train_step` the latest step the buffer has been told, if it is earlier; returns how many rollouts left.

    Rollouts with a token of a policy version above `train_step` leave: training goes on and publishes other weights
    under these numbers. The others stay with their uses and priorities (what was drawn in the lost steps counts as
    drawn), and no step on record lies in the future: insertion, last use and birth are at most `train_step`.
    """
    contents, table = buffer._contents, buffer._contents.table
    if train_step >= buffer.train_step:
        return 0
    live = table.live()
    future = live[table["policy_version_max"][live] > train_step]
    buffer._holdings.leave(future)
    contents.train_step = train_step
    live = table.live()
    contents.write(live, {name: np.minimum(table[name][live], train_step) for name in STEPS})
    contents.compact()  # ages have changed: what keeps an index derives it anew
    buffer._holdings.look_again()
    return len(future)
