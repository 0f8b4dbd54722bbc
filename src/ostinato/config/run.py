"""A whole recipe."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ostinato.config.checks import check_combinations
from ostinato.config.cluster import RayConfig
from ostinato.config.governing import ControlConfig, DiagnosticsConfig, GovernorsConfig
from ostinato.config.lora import LoraConfig
from ostinato.config.loss import LossConfig
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
from ostinato.config.setting import described, setting
from ostinato.config.tracking import TrackingConfig
from ostinato.config.vllm import VllmConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """A whole recipe."""

    seed: int = setting(0, "seed of the run", low=0)
    runtime: str = setting(
        "local", "where generators and trainers run: local (this machine) or ray (a cluster)", choices=("local", "ray")
    )
    generator: str = setting(
        "hf", "what generates with model.backend = hf: hf (transformers) or vllm", choices=("hf", "vllm")
    )
    threads: int = setting(1, "CPU threads of torch; results are bit for bit only at a fixed number", low=1, high=1024)
    checkpoint_every: int = setting(100, "train steps between checkpoints; 0: only at the end and on interrupt", low=0)
    model: ModelConfig = field(default_factory=ModelConfig)
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    buffer: BufferConfig = field(default_factory=BufferConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    diagnostics: DiagnosticsConfig = field(default_factory=DiagnosticsConfig)
    governors: GovernorsConfig = field(default_factory=GovernorsConfig)
    control: ControlConfig = field(default_factory=ControlConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    vllm: VllmConfig = field(default_factory=VllmConfig)
    toy: ToyConfig = field(default_factory=ToyConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    arms: dict[str, Any] = field(
        default_factory=dict, metadata=described("settings that differ in each arm of `compare`")
    )

    def __post_init__(self) -> None:
        check_combinations(self)


def config_to_dict(config: RunConfig) -> dict[str, Any]:
    """Nested plain dictionaries: the inverse of `config_from_dict`."""
    return asdict(config)
