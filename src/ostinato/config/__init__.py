"""Every setting of a run, once: frozen dataclasses with default, meaning and range.

`recipe` fills them from a file and the command line. Settings that contradict each other raise `ConfigError` with one
line; nothing is ever rewritten silently.
"""

from ostinato.config.cluster import RayConfig
from ostinato.config.governing import ControlConfig, DiagnosticsConfig, GovernorsConfig
from ostinato.config.lora import LoraConfig
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
from ostinato.config.tracking import TrackingConfig
from ostinato.config.vllm import VllmConfig

__all__ = [
    "BufferConfig",
    "ControlConfig",
    "DiagnosticsConfig",
    "EvaluationConfig",
    "GovernorsConfig",
    "LoopConfig",
    "LoraConfig",
    "LossConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RayConfig",
    "RunConfig",
    "SamplingConfig",
    "TaskConfig",
    "ToyConfig",
    "TrackingConfig",
    "VllmConfig",
    "WarmStartConfig",
    "config_to_dict",
]
