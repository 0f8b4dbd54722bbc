"""Which engine generates: settings that could not work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.config.traffic import Checks

if TYPE_CHECKING:
    from ostinato.config.run import RunConfig

LEAST_VLLM_TEMPERATURE = 0.01


def generator_checks(config: RunConfig) -> Checks:
    """The engine, and how many requests it is given at once."""
    loop, vllm = config.loop, config.generator == "vllm"
    requests = loop.requests_per_generator
    coldest = min(config.sampling.temperature, config.evaluation.temperature)
    processes, gpus = config.vllm.tensor_parallel_size, config.ray.gpus_per_generator
    longest, length = config.vllm.max_model_len, config.sampling.max_new_tokens
    return [
        (vllm and config.model.backend != "hf", "generator = vllm needs model.backend = hf"),
        (
            vllm and loop.clock == "virtual",
            "generator = vllm needs loop.clock = wall or turns: the virtual clock promises the same run bit for bit",
        ),
        (
            vllm and coldest < LEAST_VLLM_TEMPERATURE,
            f"generator = vllm draws at temperatures from {LEAST_VLLM_TEMPERATURE}, got {coldest:g}",
        ),
        (
            vllm and config.lora.rank > 0 and config.lora.sync == "adapter",
            "lora.sync = adapter is for generator = hf, which holds the base: vllm takes whole weights, set "
            "lora.sync = merged",
        ),
        (
            vllm and config.runtime == "ray" and gpus is not None and 0 < gpus < processes and processes > 1,
            f"ray.gpus_per_generator {gpus} is fewer than vllm.tensor_parallel_size {processes}: one for each process "
            "of the engine, or none",
        ),
        (
            vllm and longest is not None and longest <= length,
            f"vllm.max_model_len {longest} leaves no prompt beside sampling.max_new_tokens {length}: raise it, or set "
            "it to none for the model's own context",
        ),
        (
            requests > 1 and loop.clock != "wall",
            f"loop.requests_per_generator {requests} needs loop.clock = wall: another clock does one work at a time",
        ),
        (
            requests > 1 and config.runtime == "local" and not vllm,
            f"loop.requests_per_generator {requests} needs generator = vllm: hf does one request after the other; "
            "loop.groups_per_request says how many groups it decodes together",
        ),
    ]
