"""Closed forms: compute accounting and the replay buffer in equilibrium."""

from ostinato.theory.accounting import compute_ratio, compute_units, fifo_residence, mean_uses, measured_mu

__all__ = ["compute_ratio", "compute_units", "fifo_residence", "mean_uses", "measured_mu"]
