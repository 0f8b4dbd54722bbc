"""A plain stand-in for `Columns`, and a buffer of rows alone that asks rules and orders as `ReplayBuffer` does."""

from typing import Any

import numpy as np

DEFAULTS: dict[str, Any] = {
    "rollout_id": 0,
    "prompt_id": 0,
    "policy_version_min": 0,
    "insert_step": 0,
    "uses": 0,
    "reward": 0.0,
    "priority": 1.0,
    "alive": True,
}


class Held:
    """Rows in insertion order; the dead stay in between until `compact`."""

    def __init__(self) -> None:
        self.train_step = 0
        self._columns = {name: np.empty(0, np.asarray(value).dtype) for name, value in DEFAULTS.items()}
        self._given = 0

    def __len__(self) -> int:
        return int(np.count_nonzero(self.alive))

    @property
    def span(self) -> int:
        return len(self.alive)

    @property
    def alive(self):
        return self["alive"]

    def __getitem__(self, name: str):
        if name not in self._columns:
            raise KeyError(f"no column {name!r}")
        view = self._columns[name].view()
        view.flags.writeable = False
        return view

    def live(self):
        return np.flatnonzero(self.alive)

    def select(self, ranks):
        return self.live()[ranks]

    def oldest(self, n: int):
        return self.live()[: max(n, 0)]

    def rows_of(self, rollout_ids):
        held = {int(self["rollout_id"][row]): row for row in self.live().tolist()}
        return np.array([held.get(int(i), -1) for i in rollout_ids], np.int64)

    def append(self, n: int, **columns: Any):
        """n rows with the next ids; returns their rows."""
        columns = DEFAULTS | {"rollout_id": self._given + np.arange(n), "insert_step": self.train_step} | columns
        self._given += n
        for name, old in self._columns.items():
            self._columns[name] = np.concatenate([old, np.broadcast_to(columns[name], n).astype(old.dtype)])
        return np.arange(self.span - n, self.span)

    def write(self, rows, **columns: Any) -> None:
        for name, values in columns.items():
            self._columns[name][rows] = values

    def kill(self, rows) -> None:
        assert self.alive[rows].all() and len(set(rows.tolist())) == len(rows), "live rows, each once"
        self.write(rows, alive=False)

    def compact(self) -> None:
        live = self.live()
        self._columns = {name: column[live] for name, column in self._columns.items()}


class Rows:
    """Capacity, rules and one order over `Held`: what the buffer does with them, without a payload."""

    def __init__(self, capacity: int, *, rules: tuple = (), order: Any = None) -> None:
        self.held, self.capacity, self.rules, self.order = Held(), capacity, rules, order
        self._tell("rebuilt")

    def ids(self) -> list[int]:
        return self.held["rollout_id"][self.held.live()].tolist()

    def add(self, n: int = 1, *, step: int | None = None, **columns: Any) -> None:
        self.held.train_step = self.held.train_step if step is None else step
        rows = self.held.append(n, **columns)
        self._tell("changed", rows)
        self.expire(rows)
        if self.order is not None:
            n_new = int(np.count_nonzero(self.held.alive[rows]))
            self.drop(self.order.victims(self.held, len(self.held) - self.capacity, n_new))
        assert self.order is None or len(self.held) <= self.capacity

    def expire(self, touched) -> None:
        for rule in self.rules:
            self.drop(rule.expired(self.held, touched))

    def use(self, rows) -> None:
        self.held.write(rows, uses=self.held["uses"][rows] + 1)
        self._tell("changed", rows)
        self.expire(rows)

    def write(self, ids: list[int], **columns: Any) -> None:
        rows = self.held.rows_of(ids)
        self.held.write(rows, **columns)
        self._tell("changed", rows)

    def short_of_bytes(self, n: int) -> None:
        victims = self.order.next_victims(self.held, n)
        assert len(victims) == min(n, len(self.held))
        self.drop(victims)

    def drop(self, rows) -> None:
        assert (np.diff(rows) > 0).all(), "ascending"
        self.held.kill(rows)
        self._tell("changed", rows)

    def compact(self) -> None:
        self.held.compact()
        self._tell("rebuilt")

    def _tell(self, message: str, *rows: Any) -> None:
        for part in (*self.rules, self.order):
            if hasattr(part, message):
                getattr(part, message)(self.held, *rows)
