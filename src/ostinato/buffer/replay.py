"""`ReplayBuffer`: sampler x retention x limiter x capacity. The only thing that changes a buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.checks import check_count, check_ids, check_layout, check_memory, check_step, checked_limiter
from ostinato.buffer.draws import check_generator, checked_pick, draw_columns, rows_of_prompts, strategy_of
from ostinato.buffer.holdings import NONE
from ostinato.buffer.keeper import Keeper
from ostinato.buffer.limits import Limiter, MinSize
from ostinato.buffer.padding import Layout, PaddedDraw, padded
from ostinato.buffer.sampling import PromptStrategy
from ostinato.buffer.sampling.protocol import Remembering
from ostinato.buffer.sampling.strategies import random_k
from ostinato.buffer.tally import ROWS
from ostinato.buffer.workspace import Workspace
from ostinato.errors import DataError
from ostinato.protocols import Draw
from ostinato.rollouts import Rollouts
from ostinato.setting_checks import MOST

Int = NDArray[np.int64]
Rows = tuple[Int, NDArray[np.float64] | None]
"""Row numbers and their importance weights."""

Row = Mapping[str, NDArray[Any]]
Batch = TypeVar("Batch")


class ReplayBuffer(Keeper):
    """Keeps rollouts and draws them again.

    `capacity`: rollouts held at most, `capacity_bytes`: bytes held at most (`nbytes`); beyond them rollouts leave, the
    oldest unless `retention` holds another eviction order. `sampler`: which rows a draw takes. `retention`: any number
    of rules, whose verdicts add up, and at most one eviction order. `limiter`: who must wait. `admission`: rules that
    refuse rollouts at the door. Rollouts are copied in and out, never aliased. `first_id` and `id_stride` number the
    rollouts (shards use one residue each). `kernels`: "numba", "numpy" or "auto"; `threads` that copy, numba only.

    Raises `ConfigError` for settings that cannot work, `DataError` when misused: inserting past the limiter or more
    than the capacity, drawing more than is there, extra columns that differ from those held, train steps that fall.
    A refused call changes nothing, but that a refused draw has told the train step: what is too old has left. When a
    function of a sampler, a rule or an order raises, an add, a draw or a write-back has not happened, a removal has,
    and what rules or the order let go before stays gone. A sampler, rule or order that keeps something of its own
    belongs to one buffer (`ConfigError`). The limiter counts rollouts: where `capacity_bytes` is reached first, they
    leave whatever it says. Not thread-safe; `ostinato.sharing` has faces for threads, tasks and processes.
    """

    def add_one(
        self,
        tokens: Any,
        loss_mask: Any,
        behavior_logprobs: Any,
        *,
        train_step: int,
        priority: float | None = None,
        **columns: Any,
    ) -> int:
        """`add` of one rollout that comes alone, given as in `Rollouts.from_rows`: rows (L,), and single values.

        Returns its rollout id, -1 where admission refused. With arrays of the stored dtypes, and `prompt_length` and
        `prompt_id` among the columns, it takes half the time of making `Rollouts` first. Groups cost
        less a rollout.
        """
        rows = tokens, loss_mask, behavior_logprobs
        ids = self._taken(rows, columns, train_step, alone=True) if priority is None else NONE
        if not len(ids):
            given = None if priority is None else [priority]
            try:
                ids = self.add(self._single.of(*rows, columns), train_step=train_step, priorities=given)
            finally:
                self._single.forget()
        return int(ids[0])

    def add_rows(
        self,
        tokens: Sequence[Any],
        loss_mask: Sequence[Any],
        behavior_logprobs: Sequence[Any],
        *,
        train_step: int,
        priorities: Any = None,
        **columns: Any,
    ) -> Int:
        """`add` of rollouts given as in `Rollouts.from_rows`, without a record in between; returns what `add` does.

        Twice as fast for a group of one prompt whose rows are lists of arrays of the stored dtypes, with
        `prompt_length` and `prompt_id` among the columns, in a buffer with compiled kernels where the oldest leave and
        nothing else has a say (rules, priorities, admission, bytes, extras). Else it is `from_rows` and `add`.
        """
        rows = tokens, loss_mask, behavior_logprobs
        ids = self._taken(rows, columns, train_step, alone=False) if priorities is None else NONE
        if len(ids):
            return ids
        return self.add(Rollouts.from_rows(*rows, **columns), train_step=train_step, priorities=priorities)

    def _taken(self, rows: tuple[Any, Any, Any], columns: dict[str, Any], train_step: int, *, alone: bool) -> Int:
        """Take rollouts in without a record of their own; returns their ids, none where that cannot be."""
        known = type(train_step) is int and self._contents.train_step <= train_step < MOST
        if not known or not self._holdings.exchanges or self.admission or type(self).add is not Keeper.add:
            return NONE
        try:
            apart = self._given.read(rows, columns, alone=alone)
            if apart is None:
                return NONE
            n = len(apart.record)
            free = type(self.limiter) is MinSize or self.limiter.can_add(n, self._traffic())
            if not free or n > self._holdings.capacity:
                return NONE
            return self._entered(apart.record, None, train_step, {}, apart)
        finally:
            self._given.forget()

    def can_sample(self, n: int) -> bool:
        """Whether the limiter lets a batch of n >= 1 out now, and a sampler that never repeats a row finds enough."""
        n = check_count("n", n, -MOST)
        enough = n >= 1 and len(self) >= (1 if self.sampler.repeats else n)
        return enough and self.limiter.can_sample(n, self._traffic())

    def sample(self, n: int | None, *, train_step: int, rng: np.random.Generator, out: Workspace | None = None) -> Draw:
        """Draw a batch of exactly n >= 1 at this train step; rows too old by now are dropped first, never drawn.

        `n=None` leaves the size to a sampler that decides it. `out`: memory to write the payload to, reused.
        """
        memory = check_memory(out)
        return self._packed(partial(self._pick, n, train_step, rng), memory)

    def sample_padded(
        self,
        n: int | None,
        *,
        train_step: int,
        rng: np.random.Generator,
        layout: Layout | None = None,
        out: Workspace | None = None,
    ) -> PaddedDraw:
        """`sample`, written straight to arrays of one width; `layout` is `RightPadded()` when left out."""
        contents, shape, memory = self._contents, check_layout(layout), check_memory(out)

        def gather(row: Row) -> dict[str, Any]:
            arrays: dict[str, Any] = padded(contents.payload, row, shape, memory)
            arrays["extras"] = {name: contents.payload.extra(name, row, memory) for name in contents.payload.extras}
            arrays["columns"] = {name: row[name] for name in ROWS} | {
                "source": contents.source_names(row["source_code"])
            }
            return arrays

        may_fail = memory.may_refuse or layout is not None
        arrays, about = self._draw(partial(self._pick, n, train_step, rng), gather, may_fail)
        return PaddedDraw(**arrays, **about)

    def sample_prompts(
        self,
        prompt_ids: Any,
        per_prompt: int,
        *,
        train_step: int,
        rng: np.random.Generator,
        strategy: PromptStrategy | str = random_k,
        out: Workspace | None = None,
    ) -> Draw:
        """Up to `per_prompt` stored rollouts of each given prompt, in its order, as `strategy` chooses them.

        `strategy`: a function, or one of `STRATEGIES` by name.
        Prompts of which nothing is held give nothing: the draw may be shorter, or empty.
        """
        choose, memory = strategy_of(strategy), check_memory(out)
        check_generator(rng)
        wanted, per_prompt = check_ids(prompt_ids, "prompt_ids"), check_count("per_prompt", per_prompt, 1)
        self._holdings.advance(check_step(train_step, self.train_step))
        rows = rows_of_prompts(self._contents.columns, wanted, per_prompt, choose, rng)
        return self._packed(lambda: (rows, None), memory, getattr(choose, "__name__", type(choose).__name__))

    def limit(self, limiter: Limiter) -> None:
        """Let this limiter say who must wait from now on; nobody inherits a debt. Raises `ConfigError`, changing
        nothing."""
        checked_limiter(limiter).check(self.capacity)
        self.limiter = limiter
        self._inserted, self._sampled = limiter.origin(len(self)), 0

    def _pick(self, n: int | None, train_step: int, rng: np.random.Generator) -> Rows:
        """Rows of a batch, and their importance weights."""
        if n is None and not getattr(self.sampler, "decides_size", False):
            raise DataError(f"{type(self.sampler).__name__} does not decide the size of a batch, give one")
        if n is not None and (n := check_count("n", n, -MOST)) < 1:
            raise DataError(f"cannot draw {n} rollouts, expected at least 1")
        check_generator(rng)
        self._holdings.advance(check_step(train_step, self._contents.train_step))
        if not self.can_sample(n if n is not None else 1):
            gone = self.statistics.expiries()
            held = f"{len(self)} rollouts held ({gone} so far)" if gone else f"{len(self)} rollouts held"
            raise DataError(f"cannot draw {n} from the {held}; ask can_sample first")
        return checked_pick(self.sampler, self._contents.columns, n, rng)

    def _packed(self, pick: Callable[[], Rows], memory: Workspace, picked_by: str = "") -> Draw:
        gather = partial(self._contents.rollouts, out=memory)
        rollouts, about = self._draw(pick, gather, memory.may_refuse, picked_by)
        return Draw(rollouts=rollouts, **about)

    def _draw(
        self, pick: Callable[[], Rows], gather: Callable[[Row], Batch], may_fail: bool, picked_by: str = ""
    ) -> tuple[Batch, dict[str, Any]]:
        """Pick rows, gather them and book the draw; what `gather` raises leaves everything as it was.

        `may_fail`: it may raise something else than for want of ordinary memory. Returns the columns of `Draw` too.
        """
        contents, sampler = self._contents, self.sampler
        before = sampler.state_arrays() if may_fail and isinstance(sampler, Remembering) else None
        rows, weights = pick()
        drawn = contents.draw(rows, self.statistics.correct_above)
        if drawn is None:
            who = picked_by or type(sampler).__name__
            raise DataError(f"{who} returned a row whose rollout has left; Columns.select gives live rows")
        try:
            batch = gather(drawn.row)
            about = draw_columns(drawn, weights)
            self._let_go(rows)
        except BaseException:
            if before is not None and isinstance(sampler, Remembering):
                sampler.load_state_arrays(before)
            contents.undraw(rows, drawn)
            raise
        self._sampled += len(rows)
        self.statistics.drawn(len(rows), drawn.sums, drawn.by_source)
        contents.settle()
        return batch, about

    def _let_go(self, rows: Int) -> None:
        """Remove what a draw has used up."""
        self._holdings.advance(self.train_step, rows)
