"""Closed forms: compute accounting, the replay buffer in equilibrium, and the design that costs least."""

from ostinato.theory.accounting import compute_ratio, compute_units, fifo_residence, mean_uses, measured_mu
from ostinato.theory.optimum import Optimum, minimize, optimum
from ostinato.theory.planner import Design, Limits, held_time_ratio, split_designs, turn_designs
from ostinato.theory.variance import MeasuredVariance, PowerLaw, VarianceLaw, monotone
from ostinato.theory.workload import Problem, Workload, gradient_bound

__all__ = [
    "Design",
    "Limits",
    "MeasuredVariance",
    "Optimum",
    "PowerLaw",
    "Problem",
    "VarianceLaw",
    "Workload",
    "compute_ratio",
    "compute_units",
    "fifo_residence",
    "gradient_bound",
    "held_time_ratio",
    "mean_uses",
    "measured_mu",
    "minimize",
    "monotone",
    "optimum",
    "split_designs",
    "turn_designs",
]
