"""Rules that act on the diagnostics: what is drawn no more, how far a step goes, which gradient is dropped."""

from ostinato.governors.baseline import off_policy_baselines
from ostinato.governors.chosen import reuse_governor, step_governor
from ostinato.governors.gradient_gate import GradientGate, GradientGateSettings
from ostinato.governors.learning_rate import LearningRateSettings, learning_rate_scale
from ostinato.governors.reuse import ReuseGovernor, ReuseSettings
from ostinato.governors.step import Decision, StepGovernor, StepSettings

__all__ = [
    "Decision",
    "GradientGate",
    "GradientGateSettings",
    "LearningRateSettings",
    "ReuseGovernor",
    "ReuseSettings",
    "StepGovernor",
    "StepSettings",
    "learning_rate_scale",
    "off_policy_baselines",
    "reuse_governor",
    "step_governor",
]
