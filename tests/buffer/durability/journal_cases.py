"""Rollouts, buffers of many kinds, and how to compare and copy journals."""

import shutil
from pathlib import Path

import numpy as np

from ostinato.buffer import (
    BoundedQueue,
    Correct,
    MaxStaleness,
    MaxUses,
    Newest,
    PositiveBias,
    ReplayBuffer,
    Reservoir,
)
from ostinato.buffer.journal import JournaledBuffer
from ostinato.buffer.sampling import Epoch, Prioritized
from ostinato.ragged import Ragged
from ostinato.rollouts import Rollouts

BUFFERS = {
    "fifo": lambda: ReplayBuffer(12),
    "queue": lambda: ReplayBuffer(
        12, sampler=Newest(), retention=[MaxUses(1), MaxStaleness(6)], limiter=BoundedQueue()
    ),
    "epoch": lambda: ReplayBuffer(12, sampler=Epoch(), retention=[PositiveBias(0.5, 0.5)]),
    "prioritized": lambda: ReplayBuffer(12, sampler=Prioritized(), retention=[Reservoir(1)], admission=[Correct(0.5)]),
    "bytes": lambda: ReplayBuffer(50, capacity_bytes=5_000, retention=[MaxUses(3)]),
}


def group(rng, n=4, train_step=0, extras=True):
    """n rollouts of one prompt, ragged, with both kinds of extra columns; some begin with tokens of the policy."""
    lengths = rng.integers(1, 20, n)
    more = {
        "image": rng.random((n, 2)).astype(np.float32),
        "versions": Ragged.from_rows([np.arange(length) for length in lengths]),
    }
    rollouts = Rollouts.from_completions(
        [rng.integers(0, 50, 3)] * n,
        [rng.integers(0, 50, length) for length in lengths],
        [-rng.random(length) for length in lengths],
        reward=rng.integers(0, 2, n).astype(float),
        prompt_id=int(rng.integers(100)),
        group_id=int(rng.integers(1 << 40)),
        policy_version_min=train_step,
        birth_step=train_step,
        source=np.array(["code", "mathematics"])[rng.integers(0, 2, n)],
        extras=more if extras else {},
    )
    if rng.random() < 0.3:
        rollouts.loss_mask[0], rollouts.behavior_logprobs[0] = True, -0.25
    return rollouts


def state(buffer):
    """Everything a buffer is, to compare. An epoch may remember rollouts that left: they make no difference."""
    arrays = buffer.state_arrays()
    arrays["statistics.departed"] = np.sort(arrays["statistics.departed"])
    for name in arrays:
        if name.endswith("Epoch.drawn"):
            arrays[name] = arrays[name][np.isin(arrays[name], arrays["book.rollout_id"])]
    return {name: (array.dtype.kind, array.tolist()) for name, array in sorted(arrays.items())} | {
        "capacity": (buffer.capacity, (buffer.buffer if isinstance(buffer, JournaledBuffer) else buffer).capacity_bytes)
    }


def killed(directory: Path, to: Path) -> Path:
    """The directory as a SIGKILL would leave it now: the files, without the lock."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(directory, to)
    return to


def segment(directory: Path) -> Path:
    """The newest segment."""
    return max(directory.glob("log-*.seg"))
