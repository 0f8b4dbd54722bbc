"""The loop: generate, score, admit, learn, publish, under a clock."""

from ostinato.loop.clock import TurnClock, VirtualClock, WallClock
from ostinato.loop.events import Admitted, Stepped
from ostinato.loop.loop import Loop, Parts
from ostinato.loop.session import Session

__all__ = ["Admitted", "Loop", "Parts", "Session", "Stepped", "TurnClock", "VirtualClock", "WallClock"]
