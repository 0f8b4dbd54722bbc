"""Memory that draws are written to, kept from one draw to the next."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import DataError
from ostinato.ragged import described


class Workspace:
    """Give one to `sample(out=...)`: a batch then lies in memory that the next draw with it overwrites.

    Fresh memory of a large batch costs more in page faults than the copy itself. `allocate(bytes)` may give other
    memory than numpy's, page-locked for one: it returns an array uint8 (bytes,).
    """

    def __init__(self, allocate: Callable[[int], NDArray[np.uint8]] | None = None) -> None:
        self._own = allocate is not None
        self._allocate = allocate or (lambda size: np.empty(size, np.uint8))
        self._kept: dict[str, NDArray[np.uint8]] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """An array of this shape in the memory kept under `name`, uninitialized."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        kept = self._kept.get(name)
        if kept is None or len(kept) < size:
            wanted = max(size, int(1.25 * len(kept)) if kept is not None else 0)
            kept = self._allocate(wanted)
            if not isinstance(kept, np.ndarray) or kept.dtype != np.uint8 or kept.ndim != 1 or len(kept) < wanted:
                raise DataError(f"allocate({wanted}) gave {described(kept)}, expected uint8 ({wanted},) or more")
            if not kept.flags.c_contiguous or not kept.flags.writeable:  # kernels write by address, past numpy's checks
                raise DataError(f"allocate({wanted}) gave memory that is read-only or not in one piece")
            self._kept[name] = kept
        array: NDArray[Any] = kept[:size].view(dtype)
        return array if len(shape) == 1 else array.reshape(shape)

    @property
    def may_refuse(self) -> bool:
        """Whether the memory is somebody else's, who may have no more."""
        return self._own

    @property
    def nbytes(self) -> int:
        """Bytes kept."""
        return sum(len(kept) for kept in self._kept.values())


class FreshMemory(Workspace):
    """New memory for every draw."""

    def array(self, name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """A new array."""
        return np.empty(shape, dtype)
