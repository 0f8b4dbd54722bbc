"""One class a tracker: the calls of its official API, and where a resumed run goes on."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ostinato.errors import MissingExtraError

MLFLOW_PARAMETERS = 100
"""Parameters that mlflow takes in one call."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a tracker is told at the beginning. `run_id`: that of the run to go on with, None: a new one."""

    project: str
    name: str
    directory: Path
    settings: Mapping[str, Any]
    run_id: str | None = None


class Tracker(Protocol):
    """A run in a tracker, open for writing. Whatever its methods raise is the caller's to bear."""

    run_id: str

    def log(self, values: Mapping[str, float], *, train_step: int) -> None:
        """Numbers of this train step."""

    def close(self, *, failed: bool) -> None:
        """Hand over what is left and end the run."""


class TensorBoard:
    """Event files in `<run>/tensorboard`. A resumed run hides what an earlier process wrote of the steps done again."""

    def __init__(self, run: Run) -> None:
        self.run_id = "tensorboard"
        self._make = require("tensorboard").SummaryWriter
        self._directory, self._settings = run.directory / "tensorboard", run.settings
        self._resumed = run.run_id is not None
        self._writer: Any = None

    def log(self, values: Mapping[str, float], *, train_step: int) -> None:
        if self._writer is None:
            self._writer = self._make(str(self._directory), purge_step=train_step if self._resumed else None)
            self._writer.add_text("settings", f"```json\n{json.dumps(self._settings, indent=1)}\n```")
        for name, value in values.items():
            self._writer.add_scalar(name, value, train_step)

    def close(self, *, failed: bool) -> None:
        if self._writer is not None:
            self._writer.close()


class Wandb:
    """Weights & Biases. Resuming goes on in the same run; `train_step` is the axis, so repeated steps are no error."""

    def __init__(self, run: Run) -> None:
        self._run = require("wandb").init(
            project=run.project,
            name=run.name,
            id=run.run_id,
            resume="allow" if run.run_id else None,
            dir=str(run.directory),
            config=dict(run.settings),
        )
        self.run_id = str(self._run.id)
        self._run.define_metric("train_step")
        self._run.define_metric("*", step_metric="train_step")

    def log(self, values: Mapping[str, float], *, train_step: int) -> None:
        self._run.log({**values, "train_step": train_step})

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class Trackio:
    """trackio. Resuming goes on in the run of this name; steps done again stand there twice."""

    def __init__(self, run: Run) -> None:
        self._run = require("trackio").init(
            project=run.project,
            name=run.run_id or run.name,  # a name that was taken was changed
            config=_dotted(run.settings),
            resume="allow" if run.run_id else "never",
            embed=False,
        )
        self.run_id = str(self._run.name)

    def log(self, values: Mapping[str, float], *, train_step: int) -> None:
        self._run.log(dict(values), step=train_step)

    def close(self, *, failed: bool) -> None:
        self._run.finish()


class Mlflow:
    """mlflow, wherever MLFLOW_TRACKING_URI points. Resuming goes on in the same run."""

    def __init__(self, run: Run) -> None:
        mlflow = require("mlflow")
        self._metric = mlflow.entities.Metric
        self._client = mlflow.MlflowClient()
        if run.run_id is not None:
            self.run_id = run.run_id
            self._client.update_run(self.run_id, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(run.project)
        experiment = found.experiment_id if found else self._client.create_experiment(run.project)
        self.run_id = str(self._client.create_run(experiment, run_name=run.name).info.run_id)
        settings = [mlflow.entities.Param(key, str(value)) for key, value in _dotted(run.settings).items()]
        for start in range(0, len(settings), MLFLOW_PARAMETERS):
            self._client.log_batch(self.run_id, params=settings[start : start + MLFLOW_PARAMETERS])

    def log(self, values: Mapping[str, float], *, train_step: int) -> None:
        now_ms = int(time.time() * 1000)
        metrics = [self._metric(name, value, now_ms, train_step) for name, value in values.items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def close(self, *, failed: bool) -> None:
        self._client.set_terminated(self.run_id, status="FAILED" if failed else "FINISHED")


KINDS: dict[str, Callable[[Run], Tracker]] = {
    "mlflow": Mlflow,
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": Wandb,
}
"""Every tracker by its name in `tracking.to`."""

MODULES = {"tensorboard": "torch.utils.tensorboard"}
"""What is imported for a tracker whose module has another name."""


def require(kind: str) -> Any:
    """The module of a tracker. Raises `MissingExtraError` when it is not installed."""
    module = MODULES.get(kind, kind)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or module, kind) from error


def _dotted(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level of dotted names."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _dotted(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
