"""Ostinato: experience replay for RL post-training of language models.

Keep rollouts, draw them again, spend less compute. This package's face needs numpy alone; `ostinato.losses` needs
torch, backends and command line what their extras install.
"""

from ostinato.buffer import ReplayBuffer, ShardedBuffer, no_buffer, paper_fifo
from ostinato.errors import CheckpointError, ConfigError, DataError, MissingExtraError, OstinatoError, RunError
from ostinato.protocols import Draw, GroupRequest, Sampling, Task
from ostinato.ragged import Ragged
from ostinato.rollouts import Rollouts, concatenate

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "Draw",
    "GroupRequest",
    "MissingExtraError",
    "OstinatoError",
    "Ragged",
    "ReplayBuffer",
    "Rollouts",
    "RunError",
    "Sampling",
    "ShardedBuffer",
    "Task",
    "concatenate",
    "no_buffer",
    "paper_fifo",
]
