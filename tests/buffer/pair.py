"""A replay buffer and its model, a plain list, driven with the same calls and compared in full."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from list_model import Row, expired, kept_by_bias, payload_bytes, rank, row_bytes
from rollout_makers import extra_row, groups

from ostinato.buffer import PositiveBias, ReplayBuffer
from ostinato.buffer.limits import Traffic
from ostinato.buffer.padding import PaddedDraw, PromptsLeft, RightPadded
from ostinato.errors import ConfigError, DataError
from ostinato.protocols import Draw
from ostinato.ragged import Ragged
from ostinato.rollouts import ROW_COLUMNS, TOKEN_COLUMNS, Rollouts

MAY_REFUSE = ("Groups", "Buckets", "Quotas", "FreshAnchored")
"""Samplers that need more than enough rollouts."""


class Pair:
    """A buffer and its model. Every call goes to both; `agree` compares them in full."""

    def __init__(
        self,
        make: Callable[..., ReplayBuffer],
        *,
        capacity: int,
        capacity_bytes: int | None,
        extras: str,
        new_priority: float | None,
    ) -> None:
        """`new_priority`: what a row added without one gets, None: the greatest held."""
        self.make, self.extras, self.fixed_priority = make, extras, new_priority
        self.capacity, self.capacity_bytes = capacity, capacity_bytes
        self.buffer = make(capacity, capacity_bytes=capacity_bytes)
        self.rows: list[Row] = []
        self.left: Counter[int] = Counter()  # uses of what left
        self.step = self.calls = self.group = self.added = self.stale = self.sampled_ever = 0
        self.inserted, self.sampled = self.buffer.limiter.origin(0), 0
        self.row_bytes = row_bytes(extras)

    # ---------------------------------------------------------------- calls

    def add(self, sizes: Sequence[int], seed: int, priorities: Sequence[float] | None) -> None:
        given = groups(
            np.random.default_rng(seed), sizes, first_group=self.group, version=self.step, extras=self.extras
        )
        n, buffer = len(given), self.buffer
        self.calls += 1
        self.group += len(sizes)
        fits = n <= self.capacity and (self.capacity_bytes is None or self.bytes_alone(given) <= self.capacity_bytes)
        if not fits or not buffer.limiter.can_add(n, self.traffic()):
            with pytest.raises(DataError, match="fit"):
                buffer.add(given, train_step=self.step, priorities=priorities)
            return
        default = self.new_priority()
        ids = buffer.add(given, train_step=self.step, priorities=priorities)
        assert ids.tolist() == list(range(self.added, self.added + n))
        size_of = Counter(given.group_id.tolist())
        self.rows += [
            Row(
                rollout_id=self.added + i,
                given=given,
                at=i,
                call=self.calls,
                insert_step=self.step,
                priority=default if priorities is None else priorities[i],
                group_rows=size_of[given.group_id[i]],
            )
            for i in range(n)
        ]
        self.added += n
        self.inserted += n
        self.expire()
        self.make_room()

    def sample(self, n: int, seed: int, form: str, out: Any = None) -> None:
        buffer, rng = self.buffer, np.random.default_rng(seed)
        layout = {"left": PromptsLeft(9, multiple_of=4), "right": RightPadded(7)}.get(form)
        self.expire()
        name = type(buffer.sampler).__name__
        enough = self.enough(n)
        try:
            if layout is None:
                draw = buffer.sample(n, train_step=self.step, rng=rng, out=out)
            else:
                draw = buffer.sample_padded(n, train_step=self.step, rng=rng, layout=layout, out=out)
        except DataError:
            assert not enough or name in MAY_REFUSE
            return
        assert enough and len(draw) == n
        self.compare_rows(draw)
        self.compare_batch(draw)
        self.sampled += n
        self.sampled_ever += n
        self.expire()

    def sample_prompts(self, prompt_ids: Sequence[int], per_prompt: int, seed: int) -> None:
        """As many rollouts of each prompt as wanted or there, prompts in order."""
        draw = self.buffer.sample_prompts(prompt_ids, per_prompt, train_step=self.step, rng=np.random.default_rng(seed))
        self.expire()
        of_prompt = Counter(row["prompt_id"] for row in self.rows)
        wanted = [prompt for prompt in prompt_ids for _ in range(min(per_prompt, of_prompt[prompt]))]
        assert draw.rollouts.prompt_id.tolist() == wanted
        self.compare_rows(draw)
        self.sampled += len(draw)
        self.sampled_ever += len(draw)
        self.expire()

    def write(self, picks: Sequence[int], values: Sequence[float]) -> None:
        """Priorities by id, ids that left and double ones among them."""
        held = {row.rollout_id: row for row in self.rows}
        assert self.buffer.update_priorities(picks, list(values)) == sum(pick in held for pick in picks)
        for pick, value in zip(picks, values, strict=True):
            if pick in held:
                held[pick].priority = value
            else:
                self.stale += 1

    def update(self, picks: Sequence[int], values: Sequence[float]) -> None:
        """Rewards, advantages and flags by id."""
        held = {row.rollout_id: row for row in self.rows}
        flags = np.array([value > 1 for value in values], np.bool_)
        landed = self.buffer.update(picks, reward=list(values), advantage=-1.5, truncated=flags)
        assert landed == sum(pick in held for pick in picks)
        for pick, value, flag in zip(picks, values, flags.tolist(), strict=True):
            if pick in held:
                held[pick].written |= {"reward": value, "advantage": -1.5, "truncated": flag}
            else:
                self.stale += 1

    def retain(self, steps: int) -> None:
        self.step += steps
        self.buffer.retain(train_step=self.step)
        self.expire()

    def remove(self, picks: Sequence[int]) -> None:
        gone = [row for row in self.rows if row.rollout_id in picks]
        assert self.buffer.remove(picks) == len(gone)
        self.drop(gone)

    def clear(self) -> None:
        self.buffer.clear()
        self.drop(self.rows)
        self.inserted, self.sampled = self.buffer.limiter.origin(0), 0

    def resize(self, capacity: int, capacity_bytes: int | None) -> None:
        try:
            self.buffer.limiter.check(capacity)
        except ConfigError:
            with pytest.raises(ConfigError):
                self.buffer.resize(capacity, capacity_bytes)
            return
        self.buffer.resize(capacity, capacity_bytes)
        self.capacity, self.capacity_bytes = capacity, capacity_bytes
        self.make_room()

    def reload(self, path: Any) -> None:
        """Save to a file (or, without a path, to arrays) and go on with another buffer that loaded it."""
        again = self.make(self.capacity, capacity_bytes=self.capacity_bytes)
        if path is None:
            again.load_state_arrays(self.buffer.state_arrays())
        else:
            self.buffer.save(path)
            again.load(path)
        self.buffer = again
        self.make_room()

    # ---------------------------------------------------------------- what must be

    def agree(self) -> None:
        """Everything in the buffer is as in the list, byte for byte; looks without renumbering rows."""
        buffer, rows = self.buffer, self.rows
        buffer.check()
        state = buffer.state_arrays()
        book = {name: state[f"book.{name}"].tolist() for name in ("rollout_id", "insert_step", "uses", "last_use_step")}
        for name in (*book, "priority", "group_rows"):
            assert state[f"book.{name}"].tolist() == [getattr(row, name) for row in rows], name
        if rows:
            for name in ROW_COLUMNS:
                assert state[f"rollouts.{name}"].tolist() == [row[name] for row in rows], name
            for name in TOKEN_COLUMNS:
                want = np.concatenate([row.tokens(name) for row in rows])
                assert np.array_equal(state[f"rollouts.{name}"], want), name
            self.compare_extras(state)
        assert len(buffer) == len(rows) <= self.capacity
        assert Counter(buffer.departures().tolist()) == self.left
        self.left.clear()
        metrics = buffer.metrics()
        assert (metrics["admitted"], metrics["left"]) == (self.added, self.added - len(rows)), "none lost, none doubled"
        assert (metrics["stale_updates"], metrics["drawn"]) == (self.stale, self.sampled_ever)
        assert (buffer.added, buffer.train_step) == (self.added, self.step)
        for n in (1, 2, 3, 5, 8):
            assert buffer.can_add(n) == buffer.limiter.can_add(n, self.traffic())
            assert buffer.can_sample(n) == self.enough(n)
        self.compare_bytes()

    def compare_extras(self, state: dict[str, np.ndarray]) -> None:
        for name, column in self.rows[0].given.extras.items():
            rows = [extra_row(row.given.extras[name], row.at) for row in self.rows]
            if isinstance(column, Ragged):
                assert np.array_equal(state[f"rollouts.ragged.{name}"], np.concatenate(rows))
                lengths = np.diff(state[f"rollouts.ragged_offsets.{name}"])
                assert lengths.tolist() == [len(row) for row in rows]
            else:
                assert np.array_equal(state[f"rollouts.extra.{name}"], np.array(rows))

    def compare_bytes(self) -> None:
        nbytes = self.buffer.nbytes
        assert self.capacity_bytes is None or nbytes <= self.capacity_bytes
        assert nbytes == payload_bytes(self.rows) + self.row_bytes * len(self.rows)
        assert nbytes <= self.buffer.allocated_bytes

    def compare_rows(self, draw: Draw | PaddedDraw) -> None:
        """Rows of a draw are rows of the list, with the books of before; counts the uses."""
        held = {row.rollout_id: row for row in self.rows}
        assert np.isfinite(draw.importance_weights).all() and (draw.importance_weights > 0).all()
        mask = draw.attention_mask if isinstance(draw, PaddedDraw) else None
        for i, rollout_id in enumerate(draw.rollout_ids.tolist()):
            row = held[rollout_id]  # a KeyError here: a dead one was drawn
            since = -1 if row.last_use_step < 0 else self.step - row.last_use_step
            books = (self.step - row["policy_version_min"], self.step - row.insert_step, row.uses, since)
            assert (draw.staleness[i], draw.residence[i], draw.uses[i], draw.steps_since_last_use[i]) == books
            row.uses, row.last_use_step = row.uses + 1, self.step
            extras, scalars = (draw.rollouts.extras, None) if isinstance(draw, Draw) else (draw.extras, draw.columns)
            for name in ROW_COLUMNS:
                assert (getattr(draw.rollouts, name) if scalars is None else scalars[name])[i] == row[name]
            for name in TOKEN_COLUMNS:
                if isinstance(draw, Draw):
                    got = getattr(draw.rollouts, name)[draw.rollouts.offsets[i] : draw.rollouts.offsets[i + 1]]
                else:
                    got = getattr(draw, name)[i][mask[i]]
                assert np.array_equal(got, row.tokens(name))
            for name, column in row.given.extras.items():
                assert np.array_equal(extra_row(extras[name], i), extra_row(column, row.at))

    def compare_batch(self, draw: Draw | PaddedDraw) -> None:
        """No rollout twice where the sampler says so, whole groups where it says that."""
        held = {row.rollout_id: row for row in self.rows}
        if not self.buffer.sampler.repeats:
            assert len(set(draw.rollout_ids.tolist())) == len(draw)
        if type(self.buffer.sampler).__name__ == "Groups":
            drawn = Counter(held[i]["group_id"] for i in draw.rollout_ids.tolist())
            assert all(drawn[held[i]["group_id"]] == held[i].group_rows for i in draw.rollout_ids.tolist())

    # ---------------------------------------------------------------- inside

    def bytes_alone(self, given: Rollouts) -> int:
        """Bytes of rollouts that share nothing."""
        extras = (column.values if isinstance(column, Ragged) else column for column in given.extras.values())
        texts = 4 * len(given) if self.extras == "texts" else 0
        return 9 * len(given.tokens) + sum(values.nbytes for values in extras) + texts + self.row_bytes * len(given)

    def enough(self, n: int) -> bool:
        """Whether a batch of n may be drawn."""
        there = n >= 1 and len(self.rows) >= (1 if self.buffer.sampler.repeats else n)
        return there and self.buffer.limiter.can_sample(n, self.traffic())

    def traffic(self) -> Traffic:
        return Traffic(self.inserted, self.sampled, len(self.rows), self.capacity)

    def new_priority(self) -> float:
        if self.fixed_priority is not None:
            return self.fixed_priority
        return max((row.priority for row in self.rows), default=1.0)

    def drop(self, gone: Sequence[Row]) -> None:
        self.left.update(row.uses for row in gone)
        ids = {row.rollout_id for row in gone}
        self.rows = [row for row in self.rows if row.rollout_id not in ids]

    def expire(self) -> None:
        for rule in self.buffer._holdings.rules:
            self.drop(expired(self.rows, rule, self.step))

    def make_room(self) -> None:
        """What left must be what the order names first, and no more than is too much."""
        held = set(self.buffer.state_arrays()["book.rollout_id"].tolist())
        gone = [row for row in self.rows if row.rollout_id not in held]
        kept, order = [row for row in self.rows if row.rollout_id in held], self.buffer._holdings.eviction
        if isinstance(order, PositiveBias):
            should = kept_by_bias(self.rows, order, self.capacity)
            assert kept == should if self.capacity_bytes is None else all(row in should for row in kept)
        else:
            over = max(0, len(self.rows) - self.capacity)
            assert len(gone) == over if self.capacity_bytes is None else len(gone) >= over
            if gone and kept:
                last, first = (
                    max(rank(order, row, self.step) for row in gone),
                    min(rank(order, row, self.step) for row in kept),
                )
                assert last < first
        self.drop(gone)
