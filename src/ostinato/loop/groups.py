"""What comes back from a generator, and its rewards."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.advantages import score_group
from ostinato.errors import DataError, OstinatoError
from ostinato.protocols import GroupRequest, Scorer
from ostinato.rollouts import Rollouts


@dataclass(frozen=True, slots=True)
class Generated:
    """What a generator's request came back as."""

    rollouts: Rollouts
    groups: tuple[int, ...]
    generate_s: float = 0.0
    score_s: float = 0.0


def scored(scorer: Scorer, group: Rollouts, request: GroupRequest) -> Rollouts:
    """The group with rewards and advantages. Raises `DataError` for another number of rollouts than were asked for, and
    when the scorer fails."""
    if len(group) != request.group_size:
        raise DataError(f"group {request.group_id} came back with {len(group)} of {request.group_size} rollouts")
    try:
        rewards = scorer.score(group, [request.task] * len(group))
    except OstinatoError:
        raise
    except Exception as error:
        where = f"group {request.group_id}, prompt {request.task.prompt[:80]!r}"
        raise DataError(f"the scorer failed on {where}: {type(error).__name__}: {error}") from error
    return score_group(group, rewards)
