"""Figures and a page made from run files."""

from ostinato.report.page import write_report
from ostinato.report.plots import accuracy_against_compute, replay_histograms, run_curves

__all__ = ["accuracy_against_compute", "replay_histograms", "run_curves", "write_report"]
