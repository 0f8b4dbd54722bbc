"""Experiment trackers: wandb, trackio, TensorBoard and mlflow get what metrics.jsonl gets."""

from ostinato.trackers.kinds import KINDS, Run, Tracker
from ostinato.trackers.numbers import numbers
from ostinato.trackers.tracking import tracked

__all__ = ["KINDS", "Run", "Tracker", "numbers", "tracked"]
