"""The replay buffer: sampler, retention, limiter and capacity, each on its own. numpy only."""

from ostinato.buffer.admission import Admission, Correct, FiniteLogprobs, Informative
from ostinato.buffer.columns import Columns
from ostinato.buffer.limits import BoundedQueue, Limiter, MinSize, SamplesPerInsert, Traffic
from ostinato.buffer.padding import PaddedDraw, PromptsLeft, RightPadded
from ostinato.buffer.presets import no_buffer, paper_fifo
from ostinato.buffer.replay import ReplayBuffer
from ostinato.buffer.retention import (
    Eviction,
    KeepBest,
    MaxStaleness,
    MaxUses,
    NewestPerPrompt,
    OldestFirst,
    PositiveBias,
    Reservoir,
    Retention,
    Rule,
    SmartEviction,
)
from ostinato.buffer.sampling import Newest, Oldest, Sampler, Uniform
from ostinato.buffer.shards import ShardedBuffer
from ostinato.buffer.workspace import Workspace

__all__ = [
    "Admission",
    "BoundedQueue",
    "Columns",
    "Correct",
    "Eviction",
    "FiniteLogprobs",
    "Informative",
    "KeepBest",
    "Limiter",
    "MaxStaleness",
    "MaxUses",
    "MinSize",
    "Newest",
    "NewestPerPrompt",
    "Oldest",
    "OldestFirst",
    "PaddedDraw",
    "PositiveBias",
    "PromptsLeft",
    "ReplayBuffer",
    "Reservoir",
    "Retention",
    "RightPadded",
    "Rule",
    "Sampler",
    "SamplesPerInsert",
    "ShardedBuffer",
    "SmartEviction",
    "Traffic",
    "Uniform",
    "Workspace",
    "no_buffer",
    "paper_fifo",
]
