"""A replay buffer as a plain list: what a rollout is, when rules and orders let it go, how many bytes it takes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rollout_makers import extra_row, groups

from ostinato.buffer import KeepBest, MaxStaleness, MaxUses, NewestPerPrompt, PositiveBias, ReplayBuffer, Reservoir
from ostinato.buffer.retention import OldestFirst, SmartEviction
from ostinato.buffer.retention.ranked import lottery
from ostinato.rollouts import Rollouts


@dataclass
class Row:
    """What one rollout must look like; `given[at]` is how it came."""

    rollout_id: int
    given: Rollouts
    at: int
    call: int
    insert_step: int
    priority: float
    group_rows: int
    uses: int = 0
    last_use_step: int = -1
    written: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.written.get(name, getattr(self.given, name)[self.at])

    def tokens(self, name: str) -> np.ndarray:
        return getattr(self.given, name)[self.given.offsets[self.at] : self.given.offsets[self.at + 1]]


def expired(rows: list[Row], rule: object, step: int) -> list[Row]:
    """Rows that a rule does not keep at this train step."""
    if isinstance(rule, MaxStaleness):
        return [row for row in rows if step - row["policy_version_min"] > rule.n]
    if isinstance(rule, MaxUses):
        return [row for row in rows if row.uses >= rule.n]
    assert isinstance(rule, NewestPerPrompt)
    newer = Counter()
    gone = []
    for row in reversed(rows):
        newer[row["prompt_id"]] += 1
        if newer[row["prompt_id"]] > rule.n:
            gone.append(row)
    return gone


def rank(order: object, row: Row, step: int) -> tuple[float, int]:
    """By this an eviction order lets rows go, the lowest first."""
    if isinstance(order, OldestFirst):
        return 0.0, row.rollout_id
    if isinstance(order, KeepBest):
        return row.priority, row.rollout_id
    if isinstance(order, Reservoir):
        return float(lottery(order.seed, np.array([row.rollout_id]))[0]), row.rollout_id
    assert isinstance(order, SmartEviction)
    age = (step - row.insert_step) / order.tau
    leaf = max(row.priority * np.exp(-age), 1e-8) ** order.exponent
    score = age / (leaf + 1e-6) * (1 + np.log(1 + row.uses) / 10)
    return -float(f"{score:.9g}"), row.rollout_id


def kept_by_bias(rows: list[Row], order: PositiveBias, capacity: int) -> list[Row]:
    """floor((1 - delta) N) newest, and the newest correct ones before them."""
    newest = int((1 - order.delta) * capacity)
    older, new = rows[: max(0, len(rows) - newest)], rows[max(0, len(rows) - newest) :]
    correct = [row for row in older if row["reward"] > order.threshold]
    return correct[max(0, len(correct) - (capacity - newest)) :] + new


def payload_bytes(rows: Sequence[Row]) -> int:
    """8 bytes a token after the prompt, 9 where the mask has gaps; prompts and extra columns once for all that share.

    Equal values share when one call brought them or when they have at least 64 bytes; a prompt that is trained on is
    part of its rollout, at 9 bytes a token. A text has its own width and 4 bytes more.
    """
    total, shared = 0, {}
    for row in rows:
        tokens, mask = row.tokens("tokens"), row.tokens("loss_mask")
        width = int(row["prompt_length"])
        trained = mask[:width].any() or row.tokens("behavior_logprobs")[:width].any()
        stored = len(tokens) - (0 if trained else width)
        total += (9 if trained or not mask[width:].all() else 8) * stored
        values = {"prompt": tokens[: 0 if trained else width]}
        values |= {name: extra_row(column, row.at) for name, column in row.given.extras.items()}
        for name, value in values.items():
            content = np.asarray(value).tobytes()
            if isinstance(value, str):
                content = b"size" + max(value, " ").encode("utf-32-le")
            shared[name, content, row.call if len(content) < 64 else 0] = len(content)
    return total + sum(shared.values())


def row_bytes(extras: str) -> int:
    """Bytes that a row of scalars takes with these extra columns: what is left of one rollout without its payload."""
    given = groups(np.random.default_rng(0), [1], extras=extras)
    buffer = ReplayBuffer(1)
    buffer.add(given, train_step=0)
    return buffer.nbytes - payload_bytes([Row(0, given, 0, 0, 0, 1.0, 1)])
