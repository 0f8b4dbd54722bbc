"""The gradients of the fresh and of the replayed rollouts of one batch, apart and added up."""

from __future__ import annotations

from torch import Tensor

from ostinato.backends.hf.gradients import Gradients
from ostinato.stats import gradient_figures


class GradientHalves:
    """Watches a backward pass in two parts: `end_part` after each of them. Costs the memory of one more gradient."""

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients
        self._first: list[Tensor | None] | None = None
        self._squares = (0.0, 0.0, 0.0)

    def end_part(self) -> None:
        """The first time: put the gradient aside. The second time: compare the two, and leave their sum."""
        gradients = self._gradients
        if self._first is None:
            self._first = gradients.take()
            return
        self._squares = gradients.square(self._first), gradients.square(), gradients.dot(self._first)
        gradients.add(self._first)

    def figures(self) -> dict[str, float]:
        """`grad_norm_fresh`, `grad_norm_replayed` and, where neither is 0, `grad_cosine` (`stats.gradient_figures`)."""
        fresh, replayed, dot = self._squares
        figures = gradient_figures(fresh_square=fresh, replayed_square=replayed, dot=dot)
        del figures["grad_norm"]  # the trainer knows it, of the sum
        return figures
