"""Closed forms: compute accounting, the replay buffer in equilibrium, and the design that costs least."""

from ostinato.theory.accounting import compute_ratio, compute_units, fifo_residence, mean_uses, measured_mu
from ostinato.theory.equilibrium import Equilibrium
from ostinato.theory.fit import (
    AgeMoments,
    Estimate,
    estimate_correlation_limit,
    estimate_exponent,
    estimate_mu,
    fit_exponent,
)
from ostinato.theory.one_dial import best_horizon, best_uses_at
from ostinato.theory.optimum import Optimum, minimize, optimum
from ostinato.theory.plan import Plan, best_split_without_buffer, make_plan, rho_grid, safest_rho
from ostinato.theory.planner import Design, Limits, held_time_ratio, split_designs, turn_designs
from ostinato.theory.variance import MeasuredVariance, PowerLaw, VarianceLaw, monotone
from ostinato.theory.workload import Problem, Workload, gradient_bound

__all__ = [
    "AgeMoments",
    "Design",
    "Equilibrium",
    "Estimate",
    "Limits",
    "MeasuredVariance",
    "Optimum",
    "Plan",
    "PowerLaw",
    "Problem",
    "VarianceLaw",
    "Workload",
    "best_horizon",
    "best_split_without_buffer",
    "best_uses_at",
    "compute_ratio",
    "compute_units",
    "estimate_correlation_limit",
    "estimate_exponent",
    "estimate_mu",
    "fifo_residence",
    "fit_exponent",
    "gradient_bound",
    "held_time_ratio",
    "make_plan",
    "mean_uses",
    "measured_mu",
    "minimize",
    "monotone",
    "optimum",
    "rho_grid",
    "safest_rho",
    "split_designs",
    "turn_designs",
]
