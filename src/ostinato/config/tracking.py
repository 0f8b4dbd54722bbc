"""Where a run's metrics go besides its own files: the `tracking` section of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.config.setting import setting
from ostinato.errors import ConfigError

TRACKERS = ("mlflow", "tensorboard", "trackio", "wandb")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackingConfig:
    """Experiment trackers; metrics.jsonl is written in any case."""

    to: str = setting("", f"trackers that get every metric, comma-separated, of {', '.join(TRACKERS)}; empty: none")
    project: str = setting("ostinato", "project of the run (mlflow: its experiment)")
    run: str = setting("", "name of the run there; empty: that of its directory")

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in TRACKERS:
                raise ConfigError(f"tracking.to: unknown tracker {name!r}, expected some of {', '.join(TRACKERS)}")
        if len({*self.names}) < len(self.names):
            raise ConfigError(f"tracking.to names a tracker twice: {self.to}")
        if self.names and not self.project:
            raise ConfigError("tracking.project must not be empty: trackers keep runs by project")

    @property
    def names(self) -> list[str]:
        """The trackers, one by one."""
        return [name.strip() for name in self.to.split(",")] if self.to.strip() else []
