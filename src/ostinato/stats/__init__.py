"""Aggregates of a run: replay histograms, accuracy curves, savings."""

from ostinato.stats.comparison import ArmRun, summarize
from ostinato.stats.curves import compute_to_target, saving, smoothed
from ostinato.stats.replay import ReplayStatistics

__all__ = ["ArmRun", "ReplayStatistics", "compute_to_target", "saving", "smoothed", "summarize"]
