"""What comes back from a generator, and its rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ostinato.advantages import score_group
from ostinato.errors import DataError, OstinatoError
from ostinato.protocols import GroupRequest, Scorer, scores_of
from ostinato.rollouts import Rollouts, concatenate


@dataclass(frozen=True, slots=True)
class Generated:
    """What a generator's request came back as; of its rollouts, `score_timeouts` and `score_crashes` have the reward 0
    because their scoring had to be ended."""

    rollouts: Rollouts
    groups: tuple[int, ...]
    generate_s: float = 0.0
    score_s: float = 0.0
    score_timeouts: int = 0
    score_crashes: int = 0


@dataclass(frozen=True, slots=True)
class ScoredGroup:
    """A group with rewards and advantages, and how many of its rollouts could not be scored."""

    rollouts: Rollouts
    timeouts: int = 0
    crashes: int = 0


def scored(scorer: Scorer, group: Rollouts, request: GroupRequest) -> ScoredGroup:
    """The group with rewards and advantages. Raises `DataError` for another number of rollouts than were asked for, and
    when the scorer fails."""
    if len(group) != request.group_size:
        raise DataError(f"group {request.group_id} came back with {len(group)} of {request.group_size} rollouts")
    try:
        scores = scores_of(scorer, group, [request.task] * len(group))
    except OstinatoError:
        raise
    except Exception as error:
        where = f"group {request.group_id}, prompt {request.task.prompt[:80]!r}"
        raise DataError(f"the scorer failed on {where}: {type(error).__name__}: {error}") from error
    return ScoredGroup(score_group(group, scores.rewards), scores.timeouts, scores.crashes)


def together(groups: Sequence[ScoredGroup], ids: Sequence[int], generate_s: float, score_s: float) -> Generated:
    """The groups of one request, at least one."""
    return Generated(
        groups[0].rollouts if len(groups) == 1 else concatenate([group.rollouts for group in groups]),
        tuple(ids),
        generate_s,
        score_s,
        sum(group.timeouts for group in groups),
        sum(group.crashes for group in groups),
    )
