"""What can go wrong between threads, tasks and processes. All are `RunError`s: the data are sound, the run is not."""

from __future__ import annotations

from numbers import Real

from ostinato.errors import DataError, RunError

LONGEST_S = 1e8
"""Three years: a longer wait is one without end, and more than a clock may take."""

# ruff: noqa: N818 - they are called what happened, as asyncio.QueueFull is


class WaitTimeout(RunError):
    """A bounded wait ran out; nothing was added or taken."""


class EndOfStream(RunError):
    """Closed, and nothing is left to hand out: not a failure of anybody."""


class ProducerDied(RunError):
    """A producer's process ended without `close()`.

    `producer` is its name, `pid` its process, `written` how many rollouts it finished (all of them stay readable while
    the ring holds them), `quiet_s` seconds since the last of them.
    """

    def __init__(self, producer: str, pid: int, written: int, quiet_s: float) -> None:
        super().__init__(producer, pid, written, quiet_s)
        self.producer, self.pid, self.written, self.quiet_s = producer, pid, written, quiet_s

    def __str__(self) -> str:
        last = (
            f"after {self.written} rollouts, the last {self.quiet_s:.1f} s ago" if self.written else "before its first"
        )
        return (
            f"producer {self.producer!r} (process {self.pid}) died {last}; what it finished stays readable, and "
            f"reader.forgive({self.producer!r}) goes on without it"
        )


class CircularWait(RunError):
    """An add waits for draws and a draw waits for adds: nobody can move."""


class BufferClosed(RunError):
    """An add came, or was still waiting, when the buffer was closed; nothing was added."""


def checked_timeout(timeout_s: float | None) -> float | None:
    """Seconds to wait at most, None for as long as it takes. Raises `DataError` for what is no number from 0 up."""
    if timeout_s is None:
        return None
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, Real) or not timeout_s >= 0:
        raise DataError(f"timeout_s must be a number of seconds from 0 up, or None, got {timeout_s!r}")
    return float(timeout_s) if timeout_s < LONGEST_S else None
