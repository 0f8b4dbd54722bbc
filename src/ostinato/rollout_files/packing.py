"""Lines to `Rollouts`, a chunk at a time, with what only the whole file tells: group statistics and column layouts."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.advantages import group_statistics, grpo_advantages
from ostinato.errors import DataError
from ostinato.ragged import offsets_of
from ostinato.rollout_files.extras import ExtraSurvey, Layout, column_of_values
from ostinato.rollout_files.line import Line
from ostinato.rollout_files.settings import ReadReport, ReadRules
from ostinato.rollouts import ROW_COLUMNS, Rollouts

FROM_LINE = ("prompt_length", "prompt_id", "group_id", "policy_version_min", "policy_version_max", "birth_step")


@dataclass(slots=True)
class Survey:
    """The first reading of a file: 17 bytes a rollout, and the layouts of the extra columns."""

    rules: ReadRules
    report: ReadReport
    _group_id: array[int] = field(default_factory=lambda: array("q"))
    _reward: array[float] = field(default_factory=lambda: array("d"))
    _from_group: bytearray = field(default_factory=bytearray)
    _extras: dict[str, ExtraSurvey] = field(default_factory=dict)

    def see(self, line: Line) -> None:
        """Take in one more usable line."""
        self._group_id.append(line.row["group_id"])
        self._reward.append(np.nan if line.reward is None else line.reward)
        self._from_group.append(line.advantage is None and line.group is None)
        self.report.rollouts += 1
        for name in line.unsaid:
            self.report.unsaid[name] = self.report.unsaid.get(name, 0) + 1
        self.report.without_reward += line.reward is None and line.advantage is None
        self.report.truncated_sampling += line.row["top_p"] < 1 or line.row["top_k"] > 0
        for name, value in line.extras.items():
            if self.rules.extras is None or name in self.rules.extras:
                self._extras.setdefault(name, ExtraSurvey()).see(value)

    def finished(self) -> Packing:
        """What the second reading needs. Raises `DataError` when an extra column that was asked for cannot be one."""
        layouts: dict[str, Layout] = {}
        for name in self.rules.extras or ():
            if name not in self._extras and self.report.rollouts:
                raise DataError(f"no line has the extra column {name!r}")
        for name, survey in self._extras.items():
            try:
                layouts[name] = survey.settled(self.report.rollouts)
            except DataError as error:
                if self.rules.extras is not None:
                    raise DataError(f"{name!r} cannot be an extra column: {error}") from None
                self.report.left_out[name] = str(error)
        self.report.kept = list(layouts)
        group_id_n, reward_n = np.array(self._group_id, np.int64), np.array(self._reward, np.float64)
        mean_n, std_n = _statistics(group_id_n, reward_n)
        self._count_idle(group_id_n, reward_n, std_n)
        return Packing(layouts, mean_n, std_n)

    def _count_idle(
        self, group_id_n: NDArray[np.int64], reward_n: NDArray[np.float64], std_n: NDArray[np.float64]
    ) -> None:
        """Rollouts whose advantage is 0 because of their group."""
        _, group, size = np.unique(group_id_n, return_inverse=True, return_counts=True)
        from_group = np.frombuffer(self._from_group, np.bool_)
        alone = size[group] == 1
        self.report.from_group = int(from_group.sum())
        self.report.alone = int((from_group & alone).sum())
        self.report.even = int((from_group & ~alone & ~np.isnan(reward_n) & (std_n == 0)).sum())


@dataclass(frozen=True, slots=True)
class Packing:
    """Packs lines: `layouts` of the extra columns, `mean_n` and `std_n` of each line's group in the whole file."""

    layouts: Mapping[str, Layout]
    mean_n: NDArray[np.float64]
    std_n: NDArray[np.float64]

    def packed(self, lines: Sequence[Line], first: int) -> Rollouts:
        """The rollouts of `lines`, of which `first` others came before."""
        columns: dict[str, Any] = {name: [line.row[name] for line in lines] for name in FROM_LINE}
        columns |= {name: [line.row[name] for line in lines] for name in ("truncated", "temperature", "top_p", "top_k")}
        columns["source"] = [line.row["source"] for line in lines]
        columns |= self._scores(lines, slice(first, first + len(lines)))
        return Rollouts(
            tokens=np.concatenate([line.tokens for line in lines]),
            loss_mask=np.concatenate([line.loss_mask for line in lines]),
            behavior_logprobs=np.concatenate([line.behavior_logprobs for line in lines]),
            offsets=offsets_of([len(line.tokens) for line in lines]),
            **{name: np.array(columns[name], dtype) for name, dtype in ROW_COLUMNS.items()},
            extras={
                name: column_of_values(layout, [line.extras[name] for line in lines])
                for name, layout in self.layouts.items()
            },
        )

    def _scores(self, lines: Sequence[Line], rows: slice) -> dict[str, NDArray[np.float64]]:
        reward = np.array([0.0 if line.reward is None else line.reward for line in lines])
        mean, std = self.mean_n[rows].copy(), self.std_n[rows].copy()
        for row, line in enumerate(lines):
            if line.group is not None:
                mean[row], std[row] = line.group
        advantage = np.array([0.0 if line.advantage is None else line.advantage for line in lines])
        due = np.flatnonzero([line.reward is not None and line.advantage is None for line in lines])
        advantage[due] = grpo_advantages(reward[due], mean[due], std[due])
        return {
            "reward": reward,
            "group_reward_mean": mean,
            "group_reward_std": std,
            "advantage": advantage,
        }


def _statistics(
    group_id_n: NDArray[np.int64], reward_n: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and deviation of each line's group over its members that have a reward; 0 where the line has none."""
    mean, std = np.zeros(len(reward_n)), np.zeros(len(reward_n))
    rewarded = np.flatnonzero(~np.isnan(reward_n))
    if len(rewarded):
        mean[rewarded], std[rewarded] = group_statistics(reward_n[rewarded], group_id_n[rewarded])
    return mean, std
