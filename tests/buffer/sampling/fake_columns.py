"""A double of `Columns`: named numpy arrays, some rows of which may be dead."""

import numpy as np

from ostinato.buffer.columns import Columns

DEFAULTS = {
    "uses": 0,
    "last_use_step": -1,
    "insert_step": 0,
    "birth_step": 0,
    "policy_version_min": 0,
    "priority": 1.0,
    "reward": 0.0,
    "advantage": 0.0,
    "group_reward_mean": 0.0,
    "group_id": 0,
    "group_rows": 1,
    "prompt_id": 0,
    "source_code": 0,
    "length": 1,
}


class FakeColumns(Columns):
    """Rows as arrays in a dict; `add`, `kill` and `compact` do what a buffer does, and tell the samplers."""

    def __init__(self, span=0, *, train_step=0, sources=("",), **given) -> None:
        self.train_step, self._sources = train_step, tuple(sources)
        self.arrays = {name: np.empty(0, np.asarray(value).dtype) for name, value in DEFAULTS.items()}
        self.arrays |= {"alive": np.empty(0, np.bool_), "rollout_id": np.empty(0, np.int64)}
        self.samplers, self.next_id = [], 0
        self.add(span, **given)

    def __len__(self) -> int:
        return int(self.arrays["alive"].sum())

    def __getitem__(self, name):
        view = self.arrays[name].view()
        view.flags.writeable = False
        return view

    @property
    def span(self) -> int:
        return len(self.arrays["alive"])

    @property
    def sources(self):
        return self._sources

    def live(self):
        return np.flatnonzero(self.arrays["alive"])

    def select(self, ranks):
        return self.live()[ranks]

    def rows_of(self, rollout_ids):
        where = {int(self.arrays["rollout_id"][row]): row for row in self.live()}
        return np.array([where.get(int(i), -1) for i in rollout_ids], np.int64)

    def attach(self, sampler):
        """Let a sampler know what happens from now on."""
        self.samplers.append(sampler)
        sampler.rebuilt(self)
        return sampler

    def add(self, n, **given):
        """Append n rows; returns them."""
        rows = np.arange(self.span, self.span + n)
        book = {"alive": True, "rollout_id": self.next_id + np.arange(n)}
        for name in self.arrays.keys() | given.keys():
            value = given.get(name, book.get(name, DEFAULTS.get(name, 0)))
            column = np.broadcast_to(np.asarray(value), (n,))
            old = self.arrays.get(name, np.zeros(rows[0] if n else 0, column.dtype))
            self.arrays[name] = np.concatenate([old, column.astype(old.dtype) if len(old) else column])
        self.next_id += n
        self._tell(rows)
        return rows

    def kill(self, rows) -> None:
        """Remove rows; their values become rubbish."""
        rows = np.asarray(rows)
        self.arrays["alive"][rows] = False
        for name, column in self.arrays.items():
            if column.dtype.kind == "f":
                self.arrays[name][rows] = np.nan
        self._tell(rows)

    def write(self, rows, **given) -> None:
        """Change columns of rows."""
        for name, values in given.items():
            self.arrays[name][rows] = values
        self._tell(np.asarray(rows))

    def use(self, rows) -> None:
        """Count a draw of these rows."""
        np.add.at(self.arrays["uses"], rows, 1)
        self._tell(np.asarray(rows))

    def compact(self) -> None:
        """Close the gaps: rows get new numbers."""
        alive = self.arrays["alive"]
        self.arrays = {name: column[alive] for name, column in self.arrays.items()}
        for sampler in self.samplers:
            sampler.rebuilt(self)

    def _tell(self, rows) -> None:
        for sampler in self.samplers:
            sampler.changed(self, rows)
