"""Policy losses as pure functions of tensors."""

from ostinato.errors import MissingExtraError

try:
    from ostinato.losses.adaptive_clip import (
        balanced_clip,
        continuous_hill,
        contracted_bounds,
        hill,
        inverse_square,
        sat,
        staleness_scale,
    )
    from ostinato.losses.asymre import asymre
    from ostinato.losses.clipped import clipped_surrogate
    from ostinato.losses.decoupled import centered_clip, decoupled_ppo, interpolated_proximal_logprobs
    from ostinato.losses.figures import rollout_figures
    from ostinato.losses.gates import gipo, sapo, shaped_importance
    from ostinato.losses.grpo import grpo
    from ostinato.losses.kimi import kimi
    from ostinato.losses.kl import kl_penalty, kl_terms
    from ostinato.losses.masks import negative_veto, sequence_mask
    from ostinato.losses.mixed import mixed
    from ostinato.losses.output import LossOutput, combined_metrics
    from ostinato.losses.presets import PRESETS
    from ostinato.losses.proximal import ProximalAverage
    from ostinato.losses.ratios import at_level, bounded_weights, masked_log_ratio
    from ostinato.losses.reinforce import reinforce
    from ostinato.losses.second_moment import m2po, second_moment_bound
    from ostinato.losses.trajectory_balance import log_partition, trajectory_balance
    from ostinato.losses.weighted import cispo, topr, truncated_importance, vespo
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingExtraError("torch", "hf") from error

__all__ = [
    "PRESETS",
    "LossOutput",
    "ProximalAverage",
    "asymre",
    "at_level",
    "balanced_clip",
    "bounded_weights",
    "centered_clip",
    "cispo",
    "clipped_surrogate",
    "combined_metrics",
    "continuous_hill",
    "contracted_bounds",
    "decoupled_ppo",
    "gipo",
    "grpo",
    "hill",
    "interpolated_proximal_logprobs",
    "inverse_square",
    "kimi",
    "kl_penalty",
    "kl_terms",
    "log_partition",
    "m2po",
    "masked_log_ratio",
    "mixed",
    "negative_veto",
    "reinforce",
    "rollout_figures",
    "sapo",
    "sat",
    "second_moment_bound",
    "sequence_mask",
    "shaped_importance",
    "staleness_scale",
    "topr",
    "trajectory_balance",
    "truncated_importance",
    "vespo",
]
