"""The replay buffer: sampler, retention, limiter and capacity, each on its own. numpy only."""

from ostinato.buffer.columns import Columns
from ostinato.buffer.limits import BoundedQueue, Limiter, MinSize
from ostinato.buffer.presets import no_buffer, paper_fifo
from ostinato.buffer.replay import ReplayBuffer
from ostinato.buffer.retention import MaxStaleness, MaxUses, Retention
from ostinato.buffer.sampling import Newest, Oldest, Sampler, Uniform
from ostinato.buffer.shards import ShardedBuffer

__all__ = [
    "BoundedQueue",
    "Columns",
    "Limiter",
    "MaxStaleness",
    "MaxUses",
    "MinSize",
    "Newest",
    "Oldest",
    "ReplayBuffer",
    "Retention",
    "Sampler",
    "ShardedBuffer",
    "Uniform",
    "no_buffer",
    "paper_fifo",
]
