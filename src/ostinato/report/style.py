"""One look for every figure."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ostinato.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, safe for color-blind readers; gray for the arm everything is measured against.
GRAY, INK = "#6b6b6b", "#222222"
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")

# Any: releases of matplotlib differ in how they type the keys.
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GRAY,
    "axes.labelcolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "xtick.color": GRAY,
    "ytick.color": GRAY,
    "legend.frameon": False,
    "savefig.dpi": 150,
    "savefig.facecolor": "white",
    "svg.hashsalt": "ostinato",  # ids in an SVG are random without it
}


def colors(names: Sequence[str], baseline: str = "baseline") -> dict[str, str]:
    """One color a name, in order; the baseline is gray."""
    others = [name for name in names if name != baseline]
    return {baseline: GRAY} | {name: PALETTE[i % len(PALETTE)] for i, name in enumerate(others)}


@contextmanager
def panels(
    path: Path | Sequence[Path], rows: int, columns: int, size: tuple[float, float]
) -> Iterator[tuple[Figure, Any]]:
    """A figure of `size` inches and its axes (rows, columns), written to each `path` when the block ends.

    A path that ends in .svg becomes an SVG, the same bytes for the same figure; any other a PNG. Raises
    `MissingExtraError` without matplotlib.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "report") from None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False)
        for one in (path,) if isinstance(path, Path) else path:
            _write(figure, one)


def _write(figure: Figure, path: Path) -> None:
    """Draw in memory first, then put the whole file in place."""
    image = io.BytesIO()
    if path.suffix == ".svg":
        figure.savefig(image, format="svg", metadata={"Date": None})
    else:
        figure.savefig(image, format="png")
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(image.getvalue())
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
