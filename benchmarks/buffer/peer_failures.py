"""One gate of G12 that each peer fails, as an experiment: what goes wrong, and whether it does here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .peers import opened
from .profiles import PROFILES, Source

SHORT = PROFILES["short"]


def _changes_with_its_input(name: str) -> bool:
    source = Source(SHORT, 16)
    peer = opened(name, SHORT, 16)
    peer.insert(peer.convert([source.record(uid) for uid in range(16)]))
    source.tokens[:] = 0
    return bool(np.all(np.asarray(peer.packed(8)["tokens"]) == 0))


def _broadcasts() -> bool:
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(4), batch_size=4)
    buffer.extend(TensorDict({"tokens": torch.arange(8).reshape(1, 8)}, batch_size=[1]))
    buffer.extend(TensorDict({"tokens": torch.full((1, 1), 5)}, batch_size=[1]))
    return bool((buffer[1]["tokens"] == 5).all()) and buffer[1]["tokens"].shape == (8,)


def _lands_on_the_successor() -> bool:
    import cpprb

    buffer = cpprb.PrioritizedReplayBuffer(4, {"uid": {"dtype": np.int64}}, alpha=1.0, eps=0.0)
    buffer.add(uid=np.arange(4), priorities=np.ones(4))
    handle = np.zeros(1, np.uint64)  # the index of uid 0
    buffer.add(uid=np.array([4]), priorities=np.ones(1))
    buffer.update_priorities(handle, np.full(1, 1e9))
    return bool(np.mean(buffer.sample(256)["uid"] == 4) > 0.9)


FAILURES: dict[str, tuple[str, Callable[[], bool]]] = {
    "deque": ("keeps references to what was put in", lambda: _changes_with_its_input("deque")),
    "torchrl LazyStackStorage": (
        "keeps references to what was put in",
        lambda: _changes_with_its_input("torchrl LazyStackStorage"),
    ),
    "torchrl LazyTensorStorage": ("a row of one token becomes a row of many", _broadcasts),
    "cpprb": ("a priority drawn before an overwrite lands on the successor", _lands_on_the_successor),
}
