"""The sections of a recipe, but for the loss: each a frozen dataclass of settings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ostinato.config.setting import described, setting

PRIORITIZED = ("prioritized", "per", "freshness_per", "advantage_prioritized")
"""Samplers that draw by priority."""

SAMPLER_STALENESS = {"advantage_prioritized": 10}
"""Oldest rollout, in train steps, that a sampler's published scheme keeps where loop.max_staleness says nothing."""

LEAST_RATIO = 1e-9
"""Samples per insert are above 0."""

AUTO = "auto"
"""In place of a number: what `governors.control` keeps at its optimum."""

PRIORITIES = ("reward", "advantage", "log_ratio", "kl", "entropy")
"""What they can draw by; see `ostinato.loop.priorities`."""


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
        "sort",
        "sort, add, countdown, words (addition asked in words), jsonl, toy, reasoning-gym:DATASET, or hf-dataset:PATH "
        "(a data set of the hub or a directory)",
    )
    file: str = setting("", "JSONL of prompts and answers (name = jsonl)")
    scoring: str = setting(
        "exact",
        "how the answer of a file or data set is compared: exact (reasoning-gym: by its own rule), numeric, "
        "last-number or math-verify",
        choices=("exact", "numeric", "last-number", "math-verify"),
    )
    prompt_suffix: str = setting("", "put after every prompt, e.g. ' Answer with the number only.'")
    scorer: str = setting(
        "", "a reward function of your own in place of the task's: module:function or file.py:function"
    )
    score_workers: int | None = setting(
        None,
        "processes that score; 0: in the run's own; none: 2 for math-verify, reasoning-gym and a scorer of your own, "
        "else 0",
        low=0,
        high=1024,
    )
    score_timeout_s: float = setting(
        10.0, "score_workers: seconds a completion; one that takes longer has the reward 0 and is counted", low=0.01
    )
    options: dict[str, Any] = field(
        default_factory=dict, metadata=described("difficulty settings of the task, e.g. digits = 10")
    )
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

    clock: str = setting(
        "virtual",
        "virtual (modelled durations, reproducible), wall, or turns (real time, one machine generates and trains in "
        "turns)",
        choices=("virtual", "wall", "turns"),
    )
    generators: int = setting(5, "W", low=1)
    trainers: int = setting(3, "T: data-parallel replicas of one optimizer step", low=1)
    batch_size: int = setting(60, "B: rollouts an optimizer step", low=1)
    group_size: int = setting(12, "G: rollouts a prompt", low=1)
    groups_per_request: int = setting(1, "groups a generator decodes together", low=1)
    requests_per_generator: int = setting(
        1, "requests a generator works on at once, one slow completion does not stall the others", low=1
    )
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
    capacity: int | str = setting(
        1020, "N: rollouts kept (replay: newest N) or queued; auto: kept at the optimum", low=1, words=(AUTO,)
    )
    order: str = setting("newest", "queue only: which rollouts are handed out first", choices=("newest", "oldest"))
    capacity_bytes: int | None = setting(
        None, "replay only: bytes kept at most, beside capacity; shards share them; none: no bound", low=1
    )
    sampler: str = setting(
        "uniform",
        "replay only: uniform; never_used_first, the rest at random; epoch, each once before any again; prioritized; "
        "or a published scheme: per, freshness_per, advantage_prioritized",
        choices=("uniform", "never_used_first", "epoch", *PRIORITIZED),
    )
    replacement: bool = setting(
        True, "sampler uniform, prioritized, per, freshness_per: draw with replacement inside a batch"
    )
    priority: str | None = setting(
        None,
        "prioritized samplers, what is drawn by: reward or advantage (absolute), or, written back after each train "
        "step, log_ratio, kl or entropy (mean of a token); none: the scheme's own, or advantage",
        choices=PRIORITIES,
    )
    priority_exponent: float | None = setting(
        None, "prioritized samplers: the power of the priority, 0: uniform; none: the scheme's own, or 0.6", low=0
    )
    beta: float | None = setting(
        None,
        "prioritized samplers: exponent of the correction in [0, 1]; 0: none; none: 0.4 for per, else 0",
        low=0,
        high=1,
    )
    normalize: str | None = setting(
        None,
        "beta above 0: weights over the largest of the buffer, of the batch, or off; none: buffer",
        choices=("buffer", "batch", "off"),
    )
    freshness_tau: float | None = setting(
        None,
        "prioritized samplers: priorities fade as exp(-age / tau), train steps since insertion; none: 500 for "
        "freshness_per, else never",
        low=1e-3,
    )
    positive_bias: float = setting(
        0.0, "replay only: delta, the share of the capacity for older correct rollouts; 0: newest N", low=0, high=1
    )
    correct_above: float = setting(
        0.0, "a reward above it is correct, for positive_bias and for metrics", low=-1e9, high=1e9
    )
    journal: bool = setting(
        False,
        "replay in real time: every change goes to disk at once, so what entered survives the end of this process",
    )
    min_size: int = setting(0, "replay only: rollouts needed before a draw; 0: a batch", low=0)
    samples_per_insert: float | str | None = setting(
        None,
        "replay only: draws a rollout on average; whoever is ahead waits; none: nobody; auto: kept at the optimum",
        low=LEAST_RATIO,
        words=(AUTO,),
    )
    error_buffer: float | None = setting(
        None,
        "samples_per_insert: drawn rollouts by which either side may be ahead; none: the least that cannot deadlock",
        low=LEAST_RATIO,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """Adam, constant learning rate."""

    learning_rate: float = setting(3e-5, "constant", low=0)
    beta1: float = setting(0.9, "first moment", low=0, high=1 - 1e-9)
    beta2: float = setting(0.999, "second moment", low=0, high=1 - 1e-9)
    eps: float = setting(1e-8, "added to the root of the second moment", low=1e-15)
    weight_decay: float = setting(0.0, "decoupled (AdamW)", low=0)
    grad_clip: float = setting(1.0, "bound on the gradient norm; 0: off", low=0)
    tokens_per_microbatch: int = setting(16384, "tokens a forward pass, padding included; more are accumulated", low=1)
    packing: bool = setting(
        False, "rollouts one after the other in one row in place of padding; needs an attention that keeps them apart"
    )
    activation_checkpointing: bool = setting(
        False, "compute the inside of each block again in the backward pass: less memory, one more forward pass"
    )
    fsdp: bool = setting(
        False, "several trainer processes: each holds a part of weights, gradients and optimizer (FSDP2), not a copy"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """Accuracy on held-out prompts, at the same compute points for every arm."""

    every_units: float = setting(5.0, "compute units between evaluations; 0: never", low=0)
    samples: int = setting(1, "sampled completions a prompt", low=1)
    temperature: float = setting(1.0, "of the sampled completions", low=1e-3, high=1e3)
    top_p: float = setting(1.0, "of the sampled completions", low=1e-3, high=1)
    greedy: bool = setting(True, "also report greedy accuracy")
    examples: int = setting(4, "first held-out prompts whose completions the report shows", low=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToyConfig:
    """Tabular softmax policy on a hidden sequence a prompt (model.backend = toy)."""

    prompts: int = setting(32, "training prompts", low=1)
    length: int = setting(3, "tokens a completion", low=1)
    vocabulary: int = setting(4, "tokens to choose from", low=2)
    learning_rate: float = setting(2.0, "plain gradient ascent on the table", low=0)
