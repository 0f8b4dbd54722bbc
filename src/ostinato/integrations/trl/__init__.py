"""Replay in TRL's own trainers.

from ostinato.integrations.trl import ReplayConfig, ReplayGRPOTrainer
trainer = ReplayGRPOTrainer(..., replay=ReplayConfig(capacity=2048))
"""

from ostinato.errors import MissingExtraError

try:
    from ostinato.integrations.trl.async_worker import ReplayRolloutWorker, add_replay
    from ostinato.integrations.trl.card import add_replay_to_card
    from ostinato.integrations.trl.config import ReplayConfig
    from ostinato.integrations.trl.trainer import ReplayGRPOTrainer, ReplayMixin
except ModuleNotFoundError as error:
    if error.name not in ("trl", "torch"):
        raise
    raise MissingExtraError(error.name, "trl") from error

__all__ = [
    "ReplayConfig",
    "ReplayGRPOTrainer",
    "ReplayMixin",
    "ReplayRolloutWorker",
    "add_replay",
    "add_replay_to_card",
]
