"""Samplers: which rows next? Each takes read-only columns, a number and a generator and returns rows."""

from ostinato.buffer.sampling.buckets import Buckets
from ostinato.buffer.sampling.decay import DecayLaw, Exponential
from ostinato.buffer.sampling.epoch import Epoch, NeverUsedFirst
from ostinato.buffer.sampling.fresh_anchored import FreshAnchored
from ostinato.buffer.sampling.groups import Groups
from ostinato.buffer.sampling.mixture import Mixture
from ostinato.buffer.sampling.plain import Newest, Oldest, Uniform
from ostinato.buffer.sampling.priorities import PriorityFunction
from ostinato.buffer.sampling.prioritized import Prioritized
from ostinato.buffer.sampling.protocol import Indexed, IndexedSampler, Law, Picked, Remembering, Sampler, picked
from ostinato.buffer.sampling.quotas import Quotas
from ostinato.buffer.sampling.strategies import (
    STRATEGIES,
    PromptStrategy,
    all_rows,
    highest_k,
    lowest_priority_k,
    max_variance_k,
    random_k,
    recent_k,
)

__all__ = [
    "STRATEGIES",
    "Buckets",
    "DecayLaw",
    "Epoch",
    "Exponential",
    "FreshAnchored",
    "Groups",
    "Indexed",
    "IndexedSampler",
    "Law",
    "Mixture",
    "NeverUsedFirst",
    "Newest",
    "Oldest",
    "Picked",
    "Prioritized",
    "PriorityFunction",
    "PromptStrategy",
    "Quotas",
    "Remembering",
    "Sampler",
    "Uniform",
    "all_rows",
    "highest_k",
    "lowest_priority_k",
    "max_variance_k",
    "picked",
    "random_k",
    "recent_k",
]
