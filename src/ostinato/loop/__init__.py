"""The loop: generate, score, admit, learn, publish, under a virtual or a wall clock."""

from ostinato.loop.clock import VirtualClock, WallClock
from ostinato.loop.events import Admitted, Stepped
from ostinato.loop.loop import Loop, Parts
from ostinato.loop.session import Session

__all__ = ["Admitted", "Loop", "Parts", "Session", "Stepped", "VirtualClock", "WallClock"]
