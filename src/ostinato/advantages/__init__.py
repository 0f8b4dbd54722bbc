"""Advantages from rewards: computed once, when a group is complete, and frozen in its rollouts.

Any other advantage is computed from the stored mean and deviation of the group, never from the members of the group
that a replay buffer happens to still hold.
"""

from ostinato.advantages.forms import (
    centered_advantages,
    fixed_advantages,
    grpo_advantages,
    informative,
    leave_one_out_advantages,
    population_deviation,
    shifted_advantages,
)
from ostinato.advantages.groups import check_groups, group_sizes, group_statistics
from ostinato.advantages.overlong import overlong_penalty
from ostinato.advantages.pools import joint_groups, split_groups
from ostinato.advantages.scoring import score_group
from ostinato.advantages.traces import Trace, retrace, vtrace

__all__ = [
    "Trace",
    "centered_advantages",
    "check_groups",
    "fixed_advantages",
    "group_sizes",
    "group_statistics",
    "grpo_advantages",
    "informative",
    "joint_groups",
    "leave_one_out_advantages",
    "overlong_penalty",
    "population_deviation",
    "retrace",
    "score_group",
    "shifted_advantages",
    "split_groups",
    "vtrace",
]
