"""Aggregates of a run: replay histograms, off-policy diagnostics, accuracy curves, savings."""

from ostinato.stats.age_statistics import AgeStatistics
from ostinato.stats.ages import AGE_EDGES, age_buckets
from ostinato.stats.comparison import ArmRun, summarize
from ostinato.stats.curves import compute_to_target, saving, smoothed
from ostinato.stats.effective_size import effective_sample_fraction
from ostinato.stats.efficiency import accuracy_efficiency_score
from ostinato.stats.gradients import gradient_figures
from ostinato.stats.off_policy import FIGURES, diagnose, rollout_figures
from ostinato.stats.replay import ReplayStatistics

__all__ = [
    "AGE_EDGES",
    "FIGURES",
    "AgeStatistics",
    "ArmRun",
    "ReplayStatistics",
    "accuracy_efficiency_score",
    "age_buckets",
    "compute_to_target",
    "diagnose",
    "effective_sample_fraction",
    "gradient_figures",
    "rollout_figures",
    "saving",
    "smoothed",
    "summarize",
]
