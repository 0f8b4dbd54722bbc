"""What a recipe amounts to, computed without a model, a GPU or the network."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ostinato.cli.check_model import FoundModel, find_model
from ostinato.config import RunConfig
from ostinato.governors import buffer_control
from ostinato.theory import compute_ratio, fifo_residence, mean_uses
from ostinato.theory.sizes import BF16, FLOAT32, GeneratorMemory, TrainerMemory, generator_memory, trainer_memory

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Pace:
    """What is expected when no side waits: `uses` of a rollout, `rollouts_per_step` that enter, `gamma` (cost of a step
    over one without a buffer); `capacity` and `horizon`, train steps that a rollout stays, `residence`, its mean at a
    draw, None without a buffer; `train_steps` and `rollouts` of the whole run. Sizes that are `auto` are as they begin.
    """

    uses: float
    rollouts_per_step: float
    gamma: float
    capacity: int | None
    horizon: float | None
    residence: float | None
    train_steps: int
    rollouts: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one GPU of each kind, with `gpu_bytes`, of which a generator takes `generator_share`. `sequence_tokens`: the
    longest sequence it is built for, None: the model's own context; `sequences`: as many it decodes at once at most."""

    trainer: TrainerMemory
    generator: GeneratorMemory
    gpu_bytes: int
    generator_share: float
    sequence_tokens: int | None
    sequences: int

    @property
    def kv_room(self) -> int:
        """Bytes of a GPU for keys and values, below 0 where not even the weights fit."""
        return int(self.generator_share * self.gpu_bytes) - self.generator.weights

    @property
    def kv_needed(self) -> int | None:
        """Bytes of keys and values of all sequences at their longest."""
        return self.sequence_tokens and self.generator.kv_token * self.sequence_tokens * self.sequences


@dataclass(frozen=True, slots=True)
class Facts:
    """What `ostinato check` tells of a recipe, warnings apart. `model`: None for the toy; `memory`: also where the
    model's sizes are not known."""

    config: RunConfig
    pace: Pace
    model: FoundModel | None
    memory: Memory | None


def facts_of(config: RunConfig, gpu_bytes: int) -> Facts:
    """Raises `ConfigError` when `model.path` is a directory without a model."""
    model = find_model(config) if config.model.backend == "hf" else None
    memory = _memory(config, model, gpu_bytes) if model and model.sizes else None
    return Facts(config, _pace(config), model, memory)


def _pace(config: RunConfig) -> Pace:
    loop, buffer, control = config.loop, config.buffer, buffer_control(config)
    sizes = control.dials if control else buffer
    capacity, ratio = sizes.capacity, sizes.samples_per_insert
    assert not isinstance(capacity, str) and not isinstance(ratio, str)
    uses, gamma = _uses_and_gamma(config, ratio)
    entering = loop.batch_size / uses
    horizon = residence = None
    if buffer.kind == "replay":
        horizon = capacity / entering
        residence = max(0.0, fifo_residence(capacity, entering)) + _late(config, ratio)
    by_compute = loop.compute_units / gamma if loop.compute_units else math.inf
    steps = math.ceil(min(by_compute, loop.train_steps or math.inf))
    kept = capacity if buffer.kind == "replay" else None
    return Pace(uses, entering, gamma, kept, horizon, residence, steps, math.ceil(steps * entering))


def _late(config: RunConfig, ratio: float | None) -> int:
    """Train steps between arriving and the first draw: what arrives while the learner works, not while it waits for
    generators, is drawn a step later than in the synchronous model."""
    loop = config.loop
    waits = ratio is not None and mean_uses(loop.mu, loop.generators, loop.trainers) > ratio
    return 0 if loop.clock == "turns" or waits else 1


def _uses_and_gamma(config: RunConfig, ratio: float | None) -> tuple[float, float]:
    loop = config.loop
    if config.buffer.kind == "queue":
        return float(loop.epochs), (1 + loop.mu / loop.epochs) / (1 + loop.mu)
    if ratio is not None:
        return ratio, (1 + loop.mu / ratio) / (1 + loop.mu)
    return mean_uses(loop.mu, loop.generators, loop.trainers), compute_ratio(loop.mu, loop.generators, loop.trainers)


def _memory(config: RunConfig, model: FoundModel, gpu_bytes: int) -> Memory:
    assert model.sizes is not None
    optimizer, vllm, loop = config.optimizer, config.vllm, config.loop
    trainer = trainer_memory(
        model.sizes,
        tokens=optimizer.tokens_per_microbatch,
        bf16=config.model.bf16,
        checkpointing=optimizer.activation_checkpointing,
        replicas=loop.trainers if config.runtime == "ray" else 1,
        spread=optimizer.fsdp and config.runtime == "ray",
        adapter_rank=config.lora.rank,
        reference=config.loss.kl_coefficient > 0 or config.loss.name == "trajectory_balance",
    )
    if config.generator == "vllm":
        half = vllm.dtype in ("bfloat16", "float16") or (vllm.dtype is None and config.model.bf16)
        generator = generator_memory(model.sizes, width=BF16 if half else FLOAT32, gpus=vllm.tensor_parallel_size)
        return Memory(trainer, generator, gpu_bytes, vllm.gpu_memory_utilization, vllm.max_model_len, vllm.max_num_seqs)
    rows = loop.group_size * loop.groups_per_request
    return Memory(trainer, generator_memory(model.sizes, width=FLOAT32), gpu_bytes, 1.0, None, rows)
