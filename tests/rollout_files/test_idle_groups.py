"""What the report of a file says of groups that teach nothing, and of what its lines leave out."""

import pytest
from rollout_examples import line

from ostinato.rollout_files import ReadRules, open_rollouts


def counts(path, **rules) -> tuple[int, int, int]:
    report = open_rollouts(path, ReadRules(**rules)).report
    return report.from_group, report.alone, report.even


def test_rollouts_when_alone_or_of_equal_rewards_are_counted(lines) -> None:
    rewards, groups = [1, 0, 1, 1, 1, 0], ["a", "a", "b", "b", "b", "c"]
    path = lines(*[line(reward=r, uid=g) for r, g in zip(rewards, groups, strict=True)])
    assert counts(path) == (6, 1, 3)


def test_lines_when_without_group_ids_are_alone_unless_joined_by_prompt(lines) -> None:
    path = lines(*[line(reward=i % 2) for i in range(4)])
    assert counts(path) == (4, 4, 0)
    assert counts(path, group_by="prompt") == (4, 0, 0)


def test_rollouts_when_they_bring_advantage_or_statistics_do_not_depend_on_their_group(lines) -> None:
    path = lines(line(reward=1, advantage=2), line(reward=1, group_reward_mean=0, group_reward_std=1), line(reward=1))
    assert counts(path) == (1, 1, 0)


def test_lines_when_they_leave_out_what_the_rules_say_are_counted_by_field(lines) -> None:
    path = lines(line(policy_version=3, temperature=1), line(policy_version_min=3, top_p=1), line(top_k=0))
    assert open_rollouts(path).report.unsaid == {"policy_version": 1, "temperature": 2, "top_p": 2, "top_k": 2}


@pytest.mark.parametrize("n", [0, 1])
def test_report_when_hardly_anything_is_there_counts_it(lines, n) -> None:
    assert counts(lines(*[line(reward=1)] * n)) == (n, n, 0)
