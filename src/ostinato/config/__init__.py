"""Every setting of a run, once: frozen dataclasses with default, meaning and range.

`recipe` fills them from a file and the command line. Settings that contradict each other raise `ConfigError` with one
line; nothing is ever rewritten silently.
"""

from ostinato.config.governing import DiagnosticsConfig, GovernorsConfig
from ostinato.config.loss import LossConfig
from ostinato.config.run import RunConfig, config_to_dict
from ostinato.config.sections import (
    BufferConfig,
    EvaluationConfig,
    LoopConfig,
    ModelConfig,
    OptimizerConfig,
    SamplingConfig,
    TaskConfig,
    ToyConfig,
    WarmStartConfig,
)

__all__ = [
    "BufferConfig",
    "DiagnosticsConfig",
    "EvaluationConfig",
    "GovernorsConfig",
    "LoopConfig",
    "LossConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RunConfig",
    "SamplingConfig",
    "TaskConfig",
    "ToyConfig",
    "WarmStartConfig",
    "config_to_dict",
]
