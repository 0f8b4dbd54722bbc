"""`ReplayBuffer`: sampler x retention x limiter x capacity. The only thing that changes a buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.buffer.checks import check_ids
from ostinato.buffer.contents import ROWS
from ostinato.buffer.draws import checked_pick, draw_columns, rows_of_prompts
from ostinato.buffer.keeper import Keeper
from ostinato.buffer.padding import Layout, PaddedDraw, RightPadded, padded
from ostinato.buffer.sampling import PromptStrategy
from ostinato.buffer.sampling.strategies import random_k
from ostinato.buffer.workspace import FreshMemory, Workspace
from ostinato.errors import DataError
from ostinato.protocols import Draw

Int = NDArray[np.int64]


class ReplayBuffer(Keeper):
    """Keeps rollouts and draws them again.

    `capacity`: rollouts held at most, `capacity_bytes`: bytes held at most (`nbytes`); beyond them rollouts leave, the
    oldest unless `retention` holds another eviction order. `sampler`: which rows a draw takes. `retention`: any number
    of rules, whose verdicts add up, and at most one eviction order. `limiter`: who must wait. `admission`: rules that
    refuse rollouts at the door. Rollouts are copied in and out, never aliased. `first_id` and `id_stride` number the
    rollouts (shards use one residue each). `kernels`: "numba", "numpy" or "auto"; `threads` that copy, numba only.

    Raises `ConfigError` for settings that cannot work, `DataError` when misused: inserting past the limiter or more
    than the capacity, drawing more than is there, extra columns that differ from those held, train steps that fall.
    A refused call changes nothing. Not thread-safe; `ostinato.sharing` has faces for threads, tasks and processes.
    """

    def can_sample(self, n: int) -> bool:
        """Whether the limiter lets a batch of n >= 1 out now, and a sampler that never repeats a row finds enough."""
        enough = n >= 1 and len(self) >= (1 if self.sampler.repeats else n)
        return enough and self.limiter.can_sample(n, self._traffic())

    def sample(self, n: int | None, *, train_step: int, rng: np.random.Generator, out: Workspace | None = None) -> Draw:
        """Draw a batch of exactly n >= 1 at this train step; rows too old by now are dropped first, never drawn.

        `n=None` leaves the size to a sampler that decides it. `out`: memory to write the payload to, reused.
        """
        rows, weights = self._pick(n, train_step, rng)
        return self._packed(rows, weights, out)

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
        rows, weights = self._pick(n, train_step, rng)
        contents, out = self._contents, out or FreshMemory()
        row = contents.table.gather(rows)
        arrays: dict[str, Any] = padded(contents.payload, row, layout or RightPadded(), out)
        extras = {name: contents.payload.extra(name, row, out) for name in contents.payload.extras}
        about: dict[str, Any] = draw_columns(row, self._count(rows), weights, train_step)
        columns = {name: row[name] for name in ROWS} | {"source": contents.source_names(row["source_code"])}
        return PaddedDraw(**arrays, columns=columns, extras=extras, **about)

    def sample_prompts(
        self,
        prompt_ids: Any,
        per_prompt: int,
        *,
        train_step: int,
        rng: np.random.Generator,
        strategy: PromptStrategy = random_k,
        out: Workspace | None = None,
    ) -> Draw:
        """Up to `per_prompt` stored rollouts of each given prompt, in its order, as `strategy` chooses them.

        Prompts of which nothing is held give nothing: the draw may be shorter, or empty.
        """
        self._holdings.advance(train_step)
        wanted = check_ids(prompt_ids, "prompt_ids")
        rows = rows_of_prompts(self._contents.columns, wanted, per_prompt, strategy, rng)
        return self._packed(rows, None, out)

    def _pick(self, n: int | None, train_step: int, rng: np.random.Generator) -> tuple[Int, NDArray[np.float64] | None]:
        """Rows of a batch, and their importance weights."""
        if n is None and not getattr(self.sampler, "decides_size", False):
            raise DataError(f"{type(self.sampler).__name__} does not decide the size of a batch, give one")
        if n is not None and n < 1:
            raise DataError(f"cannot draw {n} rollouts, expected at least 1")
        self._holdings.advance(train_step)
        if not self.can_sample(n if n is not None else 1):
            raise DataError(f"cannot draw {n} from the {len(self)} rollouts held; ask can_sample first")
        return checked_pick(self.sampler, self._contents.columns, n, rng)

    def _packed(self, rows: Int, weights: NDArray[np.float64] | None, out: Workspace | None) -> Draw:
        row = self._contents.table.gather(rows)
        rollouts = self._contents.rollouts(row, out or FreshMemory())
        return Draw(rollouts=rollouts, **draw_columns(row, self._count(rows), weights, self.train_step))

    def _count(self, rows: Int) -> Int:
        """Book a draw, and let go of what it used up; returns uses and steps since last use before it, (2, n)."""
        self._sampled += len(rows)
        before, sums, by_source = self._contents.used(rows, self.statistics.correct_above)
        self.statistics.drawn(len(rows), sums, by_source)
        self._holdings.advance(self.train_step, rows)
        self._contents.settle()
        return before
