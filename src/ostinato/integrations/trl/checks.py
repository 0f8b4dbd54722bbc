"""What replay and a `GRPOConfig` must agree on, refused before a model is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ostinato.buffer import Groups, SamplesPerInsert
from ostinato.errors import ConfigError
from ostinato.integrations.trl.config import ReplayConfig

OWN_LOSS_IGNORES = {
    "delta": None,
    "off_policy_mask_threshold": None,
    "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
}
"""Settings of TRL's own losses that a loss of ours would not see, and their values when off."""

COMPARES_GROUP = ("trajectory_balance",)
"""Losses that compare the members of a group in the batch."""

OTHER_DISTRIBUTION: Mapping[str, tuple[Any, ...]] = {
    "top_p": (None, 1.0),
    "top_k": (None, 0, -1),
    "min_p": (None, 0.0),
    "top_h": (None,),
    "typical_p": (None, 1.0),
    "epsilon_cutoff": (None, 0.0),
    "eta_cutoff": (None, 0.0),
    "repetition_penalty": (None, 1.0),
    "encoder_repetition_penalty": (None, 1.0),
    "presence_penalty": (None, 0.0),
    "frequency_penalty": (None, 0.0),
    "no_repeat_ngram_size": (None, 0),
    "bad_words_ids": (None,),
    "suppress_tokens": (None,),
    "begin_suppress_tokens": (None,),
    "sequence_bias": (None,),
    "guidance_scale": (None, 1.0),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "exponential_decay_length_penalty": (None,),
    "watermarking_config": (None,),
    "num_beams": (None, 1),
}
"""What makes completions come from another distribution than the model's log-probs, and its values when off."""


def check_training(args: Any, replay: ReplayConfig) -> None:
    """Raise `ConfigError`, with the fix, for a `GRPOConfig` under which replay would be wrong or impossible."""
    if args.num_iterations != 1:
        raise ConfigError(
            f"num_iterations is {args.num_iterations}: it trains that often in a row on one generation, which is not "
            f"replay; leave it at 1 and set ReplayConfig(uses={args.num_iterations}), which draws as many uses of each "
            "rollout from the buffer and generates as seldom"
        )
    if replay.draws:
        _check_schedule(args, replay)
    if replay.replays:
        _check_sizes(args, replay)
        _check_logprobs(args)
    if replay.loss is not None:
        _check_loss(args, replay)


def check_generation(generation_config: Any, passed: Mapping[str, Any]) -> None:
    """Raise `ConfigError` when the model's own `generation_config` truncates or penalizes what TRL leaves open.

    `passed`: what TRL gives to `generate`; where that is None, transformers takes the model's own value.
    """
    own = {name: getattr(generation_config, name, None) for name in OTHER_DISTRIBUTION if passed.get(name) is None}
    cut = _other_distribution(own)
    if cut:
        raise ConfigError(
            f"the model's generation_config has {cut}: log-probs recomputed by the model are not those of what is "
            "sampled so, and no ratio to them means anything once they are stale; set it to None there "
            "(model.generation_config, or generation_config.json)"
        )


def _other_distribution(sampling: Mapping[str, Any]) -> str:
    """Those of these settings that change the distribution, as `name=value`."""
    cut = {name: value for name, value in sampling.items() if value not in OTHER_DISTRIBUTION.get(name, (value,))}
    return ", ".join(f"{name}={value}" for name, value in cut.items())


def _check_schedule(args: Any, replay: ReplayConfig) -> None:
    cycle, window = args.steps_per_generation * replay.generation_uses, args.gradient_accumulation_steps
    if cycle % window:
        raise ConfigError(
            f"steps_per_generation {args.steps_per_generation} times {replay.generation_uses} uses is {cycle} "
            f"micro-batches, which gradient_accumulation_steps {window} does not divide: a generation would begin "
            f"inside an optimizer step; set steps_per_generation={window} (the default) or a multiple of it"
        )


def _check_sizes(args: Any, replay: ReplayConfig) -> None:
    processes = args.world_size
    step = args.per_device_train_batch_size * args.gradient_accumulation_steps
    generation = args.per_device_train_batch_size * args.steps_per_generation
    least = max(step, generation) * processes
    if replay.capacity < least:
        raise ConfigError(
            f"capacity {replay.capacity} is below {least}: it must hold a batch of an optimizer step "
            f"({step * processes} rollouts) and one generation ({generation * processes}); set capacity >= {least}"
        )
    limiter = replay.make_buffer(processes=processes, rank=0).limiter
    if isinstance(limiter, SamplesPerInsert) and (limiter.batch_size < step or limiter.group_size < generation):
        raise ConfigError(
            f"SamplesPerInsert(batch_size={limiter.batch_size}, group_size={limiter.group_size}) while a process draws "
            f"{step} rollouts a step and adds {generation} a generation: it could stop both for ever; set "
            f"batch_size={step}, group_size={generation}"
        )
    if _draws_groups(replay, processes):
        size = args.num_generations
        for rows, setting in ((step, "gradient_accumulation_steps"), (generation, "steps_per_generation")):
            if rows % size:
                raise ConfigError(
                    f"whole groups of num_generations {size} do not fill the {rows} rollouts of a process "
                    f"(per_device_train_batch_size {args.per_device_train_batch_size} times {setting} "
                    f"{rows // args.per_device_train_batch_size}): make that a multiple of {size}"
                )


def _draws_groups(replay: ReplayConfig, processes: int) -> bool:
    sampler = replay.make_buffer(processes=processes, rank=0).sampler
    return any(isinstance(part, Groups) for part in _samplers(sampler))


def _samplers(sampler: Any) -> Iterator[Any]:
    """The sampler and what it draws replayed rollouts with."""
    while sampler is not None:
        yield sampler
        sampler = getattr(sampler, "replay", None)


def _check_logprobs(args: Any) -> None:
    """The ratio to the policy that generated must be known: its log-probs are of the distribution sampled from."""
    corrected = args.use_vllm and args.vllm_importance_sampling_correction
    if args.use_vllm and not corrected:
        raise ConfigError(
            "vllm_importance_sampling_correction is off while replayed rollouts are stale: the ratio to the policy "
            "that generated would be unknown; set vllm_importance_sampling_correction=True"
        )
    sampling = {name: getattr(args, name) for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")}
    sampling |= {"do_sample": True, **(args.generation_kwargs or {})}
    if not sampling["do_sample"] or not sampling["temperature"] > 0:
        raise ConfigError(
            f"temperature {sampling['temperature']} with do_sample {sampling['do_sample']}: a greedy choice has no "
            "log-probs to take a ratio to; set a temperature above 0"
        )
    if sampling["temperature"] != args.temperature:
        raise ConfigError(
            f"generation_kwargs samples at temperature {sampling['temperature']}, log-probs are taken at "
            f"{args.temperature}: set GRPOConfig(temperature=...) alone"
        )
    cut = _other_distribution(sampling)
    if cut and not corrected:
        raise ConfigError(
            f"{cut}: log-probs recomputed by the model are not those of truncated sampling, penalties or beams, "
            "so no ratio to them means anything once they are stale; leave these off, or generate with vLLM and its "
            "importance sampling correction, which knows the log-probs of what it sampled from"
        )


def _check_loss(args: Any, replay: ReplayConfig) -> None:
    chosen = replay.make_objective(args.beta)
    for name, off in OWN_LOSS_IGNORES.items():
        if getattr(args, name, off) != off:
            raise ConfigError(
                f"{name}={getattr(args, name)} belongs to TRL's own losses and loss {replay.loss!r} would not see it: "
                f"leave it at {off}, or leave out ReplayConfig(loss=...)"
            )
    if replay.loss in COMPARES_GROUP and replay.replays and not _draws_groups(replay, args.world_size):
        raise ConfigError(
            f"loss {replay.loss!r} compares the members of a group, which draws of single rollouts tear apart: set "
            "ReplayConfig(sampler=Groups())"
        )
    if chosen is not None and chosen.needs_statistics and args.world_size > 1:
        raise ConfigError(
            f"loss {replay.loss!r} looks at the whole batch first, of which each of {args.world_size} processes sees "
            "a part: train in one process, or choose another loss"
        )
