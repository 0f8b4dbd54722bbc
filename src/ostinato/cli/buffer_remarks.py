"""What a person must know about rollouts that were read from a file, a line each."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ostinato.rollout_files import ReadReport, ReadRules

SAMPLING = ("temperature", "top_p", "top_k")


def remarks(report: ReadReport, rules: ReadRules, chosen: Collection[str]) -> Iterator[str]:
    """`chosen`: the fields of the rules, for lines that do not say, that the person gave a value."""
    yield from (f"refused {complaint}" for complaint in report.complaints)
    if report.refused > len(report.complaints):
        yield f"refused {report.refused - len(report.complaints)} more lines"
    if report.without_logprobs:
        yield f"left out {report.without_logprobs} rollouts without log-probs"
    if report.without_reward:
        yield (
            f"{report.without_reward} rollouts have neither reward nor advantage: both are 0"
            " (under another name: --rename THEIRS=reward)"
        )
    yield from _groups(report, rules)
    yield from _unsaid(report, rules, chosen)
    if report.truncated_sampling:
        yield (
            f"{report.truncated_sampling} rollouts were sampled with top_p < 1 or top_k > 0: their log-probs must be"
            " those of the truncated distribution"
        )
    yield from (f"extra column {name!r} left out: {reason}" for name, reason in report.left_out.items())


def kept_extras(names: Collection[str]) -> str:
    """What an import says of the extra columns that a buffer got."""
    return (
        f"kept the extra columns {', '.join(map(repr, names))}: a buffer takes further rollouts only with the"
        " same ones; leave out what yours will not have with --no-extras, or name those to keep with --extra NAME"
    )


def _groups(report: ReadReport, rules: ReadRules) -> Iterator[str]:
    several = "log several rollouts of a prompt"
    remedy = several if rules.group_by == "prompt" else "give group ids (group_id, uid), or --group-by prompt"
    if report.from_group and report.alone == report.from_group == report.rollouts:
        yield f"every group has one rollout: all advantages are 0; {remedy}"
    elif report.from_group and report.alone + report.even == report.from_group == report.rollouts:
        yield "no group has rewards that differ: all advantages are 0"
    elif report.alone:
        yield f"{report.alone} rollouts are alone in their groups: their advantages are 0; {remedy}"


def _unsaid(report: ReadReport, rules: ReadRules, chosen: Collection[str]) -> Iterator[str]:
    unsaid = {name: count for name, count in report.unsaid.items() if name not in chosen}
    if "policy_version" in unsaid:
        yield (
            f"{unsaid['policy_version']} rollouts do not say their policy version: {rules.policy_version} is taken, so"
            " MaxStaleness drops them from a run that is further; --policy-version N says which it was"
        )
    sampling = [name for name in SAMPLING if name in unsaid]
    if sampling:
        values = ", ".join(f"{name} {getattr(rules, name):g}" for name in sampling)
        yield (
            f"{max(unsaid[name] for name in sampling)} rollouts do not say how they were sampled: {values} is taken"
            f" ({', '.join('--' + name.replace('_', '-') for name in sampling)})"
        )
