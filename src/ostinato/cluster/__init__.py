"""Generators and trainers as processes on a Ray cluster, behind the protocols of `ostinato.protocols`."""

from ostinato.cluster.backend import RayBackend
from ostinato.cluster.runtime import connect, disconnect

__all__ = ["RayBackend", "connect", "disconnect"]
