"""Every setting of a run, once: frozen dataclasses with default, meaning and range.

`recipe` fills them from a file and the command line. Settings that contradict each other raise `ConfigError` with one
line; nothing is ever rewritten silently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ostinato.errors import ConfigError


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] | None = None,
) -> Any:
    """A documented field with its allowed range (inclusive) or choices."""
    metadata = {"help": help, "low": low, "high": high, "choices": choices}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The policy: a toy table, a small Qwen3 built from sizes, or any causal LM by path."""

    backend: str = setting("hf", "toy (numpy table) or hf (transformers)", choices=("toy", "hf"))
    path: str = setting(
        "", "causal LM and tokenizer to load: directory, hub name or smollm2; empty: build from the sizes below"
    )
    hidden_size: int = setting(64, "width of the built model", low=1)
    layers: int = setting(4, "transformer blocks of the built model", low=1)
    heads: int = setting(4, "attention heads of the built model", low=1)
    kv_heads: int = setting(4, "key/value heads of the built model", low=1)
    intermediate_size: int = setting(192, "width of the MLP of the built model", low=1)
    bf16: bool = setting(False, "bf16 autocast in forward and backward; weights and optimizer stay float32")


@dataclass(frozen=True, kw_only=True, slots=True)
class WarmStartConfig:
    """Supervised fine-tuning of a built model on the task's answers before reinforcement learning; cached."""

    target_accuracy: float = setting(
        0.25, "built models: stop at this sampled accuracy on held-out prompts; 0: none", low=0, high=1
    )
    max_steps: int = setting(3000, "give up (an error) when the target is not reached by then", low=1)
    batch_size: int = setting(128, "answers a step", low=1)
    learning_rate: float = setting(1e-3, "Adam", low=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskConfig:
    """Prompts with a verifier."""

    name: str = setting(
        "sort", "sort, add, countdown, words (addition asked in words), jsonl, toy, or reasoning-gym:DATASET"
    )
    file: str = setting("", "JSONL of prompts and answers (name = jsonl)")
    scoring: str = setting(
        "exact",
        "how a JSONL answer is compared: exact, numeric, last-number or math-verify",
        choices=("exact", "numeric", "last-number", "math-verify"),
    )
    options: dict[str, Any] = setting({}, "difficulty settings of the task, e.g. digits = 10")
    test_prompts: int = setting(512, "held-out prompts, never trained on", low=1)
    seed: int = setting(0, "seed of the prompts", low=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingConfig:
    """How training rollouts are drawn: from the whole distribution, whose log-probs the trainer can recompute."""

    temperature: float = setting(1.0, "sampling temperature", low=1e-3, high=1e3)
    max_new_tokens: int = setting(32, "length limit of a completion", low=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopConfig:
    """W generators and T trainers under a clock."""

    clock: str = setting("virtual", "virtual (modelled durations, reproducible) or wall", choices=("virtual", "wall"))
    generators: int = setting(5, "W", low=1)
    trainers: int = setting(3, "T: data-parallel replicas of one optimizer step", low=1)
    batch_size: int = setting(60, "B: rollouts an optimizer step", low=1)
    group_size: int = setting(12, "G: rollouts a prompt", low=1)
    groups_per_request: int = setting(1, "groups a generator decodes together", low=1)
    mu: float = setting(5.28, "modelled cost of generating a batch over training on it", low=1e-9)
    publish_every: int = setting(1, "train steps between two offers of new weights", low=1)
    max_staleness: int | None = setting(
        None, "oldest rollout that may be trained on, in train steps; none: no bound", low=0
    )
    epochs: int = setting(1, "consecutive train steps on each drawn batch", low=1)
    shards: bool = setting(False, "T buffer shards of N/T, each drawing B/T, as in the paper; false: one buffer")
    compute_units: float = setting(0.0, "stop after this much compute, in baseline updates; 0: no bound", low=0)
    train_steps: int = setting(0, "stop after this many optimizer steps; 0: no bound", low=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferConfig:
    """Replay buffer, or the no-buffer baseline: a bounded queue that uses each rollout once."""

    kind: str = setting(
        "replay", "replay (draws do not remove) or queue (each rollout once)", choices=("replay", "queue")
    )
    capacity: int = setting(1020, "N: rollouts kept (replay: newest N) or queued", low=1)
    order: str = setting("newest", "queue only: which rollouts are handed out first", choices=("newest", "oldest"))
    sampler: str = setting(
        "uniform",
        "replay only: uniform; never_used_first, the rest at random; or epoch, each once before any again",
        choices=("uniform", "never_used_first", "epoch"),
    )
    replacement: bool = setting(True, "sampler = uniform only: draw with replacement inside a batch")
    positive_bias: float = setting(
        0.0, "replay only: delta, the share of the capacity for older correct rollouts; 0: newest N", low=0, high=1
    )
    correct_above: float = setting(0.0, "positive_bias only: a reward above it is correct", low=-1e9, high=1e9)
    min_size: int = setting(0, "replay only: rollouts needed before a draw; 0: a batch", low=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class LossConfig:
    """The objective."""

    name: str = setting("grpo", "grpo or asymre", choices=("grpo", "asymre"))
    clip_low: float = setting(0.8, "grpo: lower bound on the ratio, absolute", low=0, high=1)
    clip_high: float = setting(1.2, "grpo: upper bound on the ratio, absolute", low=1)
    shift: float = setting(-0.05, "asymre: added to the group mean; -0.05 times the reward range", high=1e9)


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """Adam, constant learning rate."""

    learning_rate: float = setting(3e-5, "constant", low=0)
    beta1: float = setting(0.9, "first moment", low=0, high=1 - 1e-9)
    beta2: float = setting(0.999, "second moment", low=0, high=1 - 1e-9)
    eps: float = setting(1e-8, "added to the root of the second moment", low=1e-15)
    weight_decay: float = setting(0.0, "decoupled (AdamW)", low=0)
    grad_clip: float = setting(1.0, "bound on the gradient norm; 0: off", low=0)
    tokens_per_microbatch: int = setting(16384, "padded tokens a forward pass; more are accumulated", low=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """Accuracy on held-out prompts, at the same compute points for every arm."""

    every_units: float = setting(5.0, "compute units between evaluations; 0: never", low=0)
    samples: int = setting(1, "sampled completions a prompt", low=1)
    temperature: float = setting(1.0, "of the sampled completions", low=1e-3, high=1e3)
    top_p: float = setting(1.0, "of the sampled completions", low=1e-3, high=1)
    greedy: bool = setting(True, "also report greedy accuracy")


@dataclass(frozen=True, kw_only=True, slots=True)
class ToyConfig:
    """Tabular softmax policy on a hidden sequence a prompt (model.backend = toy)."""

    prompts: int = setting(32, "training prompts", low=1)
    length: int = setting(3, "tokens a completion", low=1)
    vocabulary: int = setting(4, "tokens to choose from", low=2)
    learning_rate: float = setting(2.0, "plain gradient ascent on the table", low=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """A whole recipe."""

    seed: int = setting(0, "seed of the run", low=0)
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
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    toy: ToyConfig = field(default_factory=ToyConfig)
    arms: dict[str, Any] = setting({}, "settings that differ in each arm of `compare`")

    def __post_init__(self) -> None:
        check_combinations(self)


def check_combinations(config: RunConfig) -> None:
    """Refuse settings that contradict each other or would deadlock."""
    for bad, message in (*_sizes(config), *_staleness(config), *_rest(config)):
        if bad:
            raise ConfigError(message)


Checks = list[tuple[bool, str]]


def _sizes(config: RunConfig) -> Checks:
    loop, buffer = config.loop, config.buffer
    b, g, n, t = loop.batch_size, loop.group_size, buffer.capacity, loop.trainers
    queue, request = buffer.kind == "queue", g * loop.groups_per_request
    shards = t if loop.shards else 1
    return [
        (b > n, f"loop.batch_size {b} > buffer.capacity {n}: a batch never fits in the buffer"),
        (g > b, f"loop.group_size {g} > loop.batch_size {b}: a group never fits in a batch"),
        (request > n, f"groups_per_request * group_size {request} > buffer.capacity {n}: a request never fits"),
        (buffer.min_size > n, f"buffer.min_size {buffer.min_size} > buffer.capacity {n}: it is never reached"),
        (
            not queue and int((1 - buffer.positive_bias) * (n // shards)) * shards < b,
            f"buffer.positive_bias {buffer.positive_bias} keeps fewer of the newest of {n} than loop.batch_size {b}: "
            "without enough correct ones no batch would ever be there",
        ),
        (loop.shards and queue, "loop.shards needs buffer.kind = replay: the queue is one"),
        (
            loop.shards and bool(b % t or n % t),
            f"loop.shards: trainers {t} must divide batch_size {b} and buffer.capacity {n}",
        ),
        (
            queue and n < b + request - 1,
            f"buffer.capacity {n} < batch_size + request - 1 = {b + request - 1}: the queue could fill below a batch",
        ),
    ]


def _staleness(config: RunConfig) -> Checks:
    loop = config.loop
    if loop.max_staleness is None:
        return []
    b, queue, request = loop.batch_size, config.buffer.kind == "queue", loop.group_size * loop.groups_per_request
    slack = loop.max_staleness - (loop.publish_every - 1)
    return [
        (
            slack < 0,
            f"loop.max_staleness {loop.max_staleness} < publish_every - 1 = {loop.publish_every - 1}: nobody could go",
        ),
        (
            queue and slack == 0 and b % request != 0,
            f"loop.max_staleness {loop.max_staleness} leaves no slack: batch_size {b} must be a multiple of "
            f"group_size * groups_per_request = {request}",
        ),
        (queue and request > b, f"group_size * groups_per_request {request} > batch_size {b}: nobody could start"),
        (queue and loop.epochs > 1, "loop.epochs > 1 together with loop.max_staleness is not defined"),
    ]


def _rest(config: RunConfig) -> Checks:
    loop, model, task = config.loop, config.model, config.task
    return [
        (
            loop.epochs > 1 and config.buffer.kind != "queue",
            f"loop.epochs = {loop.epochs} belongs to buffer.kind = queue; a replay buffer repeats by itself",
        ),
        (
            loop.compute_units == 0 and loop.train_steps == 0,
            "set loop.compute_units or loop.train_steps: the run would not end",
        ),
        (model.heads % model.kv_heads != 0, f"model.kv_heads {model.kv_heads} must divide model.heads {model.heads}"),
        (
            model.hidden_size % model.heads != 0,
            f"model.heads {model.heads} must divide model.hidden_size {model.hidden_size}",
        ),
        ((model.backend == "toy") != (task.name == "toy"), "model.backend = toy and task.name = toy go together"),
        (task.name == "jsonl" and not task.file, "task.name = jsonl needs task.file"),
        (task.name == "toy" and bool(task.options), "task.options: the toy takes none, its sizes stand under toy"),
        (
            0 < config.evaluation.every_units < 1e-3,
            f"evaluation.every_units must be 0 (never) or at least 0.001, got {config.evaluation.every_units}",
        ),
        (
            not all(isinstance(arm, dict) for arm in config.arms.values()),
            f"arms: each must be a table of settings, got {config.arms}",
        ),
    ]


def config_to_dict(config: RunConfig) -> dict[str, Any]:
    """Nested plain dictionaries: the inverse of `config_from_dict`."""
    return asdict(config)
