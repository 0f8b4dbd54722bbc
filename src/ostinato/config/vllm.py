"""The section `vllm` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.config.setting import setting


@dataclass(frozen=True, kw_only=True, slots=True)
class VllmConfig:
    """The engine that generates where generator = vllm."""

    dtype: str | None = setting(
        None,
        "float32, bfloat16 or float16; none: bfloat16 with model.bf16, else float32",
        choices=("float32", "bfloat16", "float16"),
    )
    gpu_memory_utilization: float = setting(
        0.9, "GPU: the share of its memory for weights and key/value cache", low=0.01, high=1
    )
    kv_cache_gib: float | None = setting(
        None, "GiB of key/value cache; none: 1 on a CPU, what gpu_memory_utilization leaves on a GPU", low=1e-3
    )
    max_model_len: int | None = setting(
        None, "longest prompt with completion, in tokens; none: the model's own context", low=2
    )
    max_num_seqs: int = setting(256, "completions decoded at once, others wait", low=1)
    completion_timeout_s: float | None = setting(
        None,
        "a completion that takes longer is cut there and counts as truncated; longer in proportion where more than "
        "max_num_seqs are asked for; none: only sampling.max_new_tokens ends it",
        low=1e-3,
    )
    tensor_parallel_size: int = setting(1, "processes that share one copy of the model", low=1)
    enforce_eager: bool = setting(False, "GPU: no CUDA graphs and no compilation; on a CPU always")
    pause: str = setting(
        "wait",
        "new weights while completions run: wait (these finish first), keep (they go on under the new ones) or abort "
        "(their groups are generated again)",
        choices=("wait", "keep", "abort"),
    )
    clear_cache: bool = setting(
        True, "pause = keep: keys and values of running completions are computed again under the new weights"
    )
    sleep_level: int = setting(
        1, "clock = turns, GPU: asleep, 1 moves the weights to main memory, 2 drops them, 0 keeps all", low=0, high=2
    )
