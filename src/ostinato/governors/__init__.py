"""Rules that act on the diagnostics: what is drawn no more, how far a step goes, which gradient is dropped, how much is
kept."""

from ostinato.governors.baseline import off_policy_baselines
from ostinato.governors.chosen import buffer_control, reuse_governor, step_governor
from ostinato.governors.control import BufferControl, Change, ControlSettings, Dials
from ostinato.governors.estimates import Estimates, Spent, WorkloadWindow
from ostinato.governors.gradient_gate import GradientGate, GradientGateSettings
from ostinato.governors.learning_rate import LearningRateSettings, learning_rate_scale
from ostinato.governors.reuse import ReuseGovernor, ReuseSettings
from ostinato.governors.step import Decision, StepGovernor, StepSettings

__all__ = [
    "BufferControl",
    "Change",
    "ControlSettings",
    "Decision",
    "Dials",
    "Estimates",
    "GradientGate",
    "GradientGateSettings",
    "LearningRateSettings",
    "ReuseGovernor",
    "ReuseSettings",
    "Spent",
    "StepGovernor",
    "StepSettings",
    "WorkloadWindow",
    "buffer_control",
    "learning_rate_scale",
    "off_policy_baselines",
    "reuse_governor",
    "step_governor",
]
