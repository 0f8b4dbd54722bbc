"""Every error the library raises on purpose.

    OstinatoError
    ├── ConfigError        (ValueError)    a setting is wrong, unknown or contradicts another
    ├── DataError          (ValueError)    rollouts, task files or rewards that cannot be used
    ├── CheckpointError    (RuntimeError)  a checkpoint is missing, truncated or of another format
    ├── MissingExtraError  (ImportError)   an optional dependency is not installed
    └── RunError           (RuntimeError)  a run cannot go on: a worker failed, nobody can move
        └── StateLostError                      trainers or buffer died; from the last checkpoint the run can go on

Messages say what was got, what was expected and where, in one line. The command line turns
`ConfigError` into exit code 2 and every other one into exit code 1.
"""


class OstinatoError(Exception):
    """Root of the errors raised by this package."""


class ConfigError(OstinatoError, ValueError):
    """A setting is wrong, unknown or contradicts another one."""


class DataError(OstinatoError, ValueError):
    """Rollouts, a task file or rewards that cannot be used."""


class CheckpointError(OstinatoError, RuntimeError):
    """A checkpoint is missing, truncated or of another format."""


class MissingExtraError(OstinatoError, ImportError):
    """An optional dependency is not installed; the message carries the install line."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(module, extra)

    def __str__(self) -> str:
        module, extra = self.args
        return f"{module} is not installed; run: pip install 'ostinato[{extra}]'"


class RunError(OstinatoError, RuntimeError):
    """A run cannot go on: a worker failed, or every participant waits for another."""


class StateLostError(RunError):
    """A process that held weights or buffer died or hangs: the run can go on from its last checkpoint."""
