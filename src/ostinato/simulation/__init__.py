"""The loop with a backend of durations: how a design behaves before a GPU is rented."""

from ostinato.simulation.durations import Durations, Service
from ostinato.simulation.lengths import Empirical, Fixed, Lengths, LogNormal
from ostinato.simulation.simulate import Simulation, simulate

__all__ = ["Durations", "Empirical", "Fixed", "Lengths", "LogNormal", "Service", "Simulation", "simulate"]
