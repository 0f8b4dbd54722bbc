"""What crosses between processes, in seconds and bytes, since this process took the run up."""

from __future__ import annotations

import threading
from dataclasses import asdict, dataclass, field

from ostinato.cluster.actors import Generation


@dataclass(slots=True)
class Moved:
    """How often something was moved, how long that took together, and its bytes."""

    times: int = 0
    seconds: float = 0.0
    nbytes: int = 0


@dataclass(slots=True)
class Traffic:
    """Counted from any thread.

    `weights`: fetched and loaded by generators. `groups`: a request's way to the generator and its rollouts' way back,
    waiting for a thread of either side included. `draws`: batches on their way to the trainers, and what they tell.
    """

    _weights: Moved = field(default_factory=Moved)
    _groups: Moved = field(default_factory=Moved)
    _draws: Moved = field(default_factory=Moved)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def groups(self, answer: Generation, took_s: float) -> None:
        """Count an answer that was here after `took_s` seconds."""
        with self._lock:
            if answer.load_s:
                self._weights.times += 1
                self._weights.seconds += answer.load_s
            self._groups.times += len(answer.groups)
            self._groups.seconds += max(0.0, took_s - answer.busy_s - answer.load_s)
            self._groups.nbytes += sum(group.nbytes for group in answer.groups)

    def draw(self, nbytes: int, seconds: float) -> None:
        """Count a batch that went to the trainers, and its bytes if they came from this process."""
        with self._lock:
            self._draws.times += 1
            self._draws.seconds += seconds
            self._draws.nbytes += nbytes

    def numbers(self) -> dict[str, float]:
        """`transfer.weights_s`, `transfer.groups_s`, `transfer.draws_s` and so on, by the names of docs/metrics.md."""
        with self._lock:
            moved = {"weights": self._weights, "groups": self._groups, "draws": self._draws}
            return {
                f"transfer.{what}_{name}": float(value)
                for what, one in moved.items()
                for name, value in zip(("count", "s", "bytes"), asdict(one).values(), strict=True)
                if (what, name) != ("weights", "bytes")
            }
