"""A penalty on completions that come near the length limit, to add to their rewards before they are scored."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ostinato.errors import ConfigError


def overlong_penalty(
    lengths_n: NDArray[np.int64], *, max_tokens: int = 20480, margin_tokens: int = 4096
) -> NDArray[np.float64]:
    """0 up to `max_tokens` - `margin_tokens`, falling to -1 at `max_tokens`, -1 beyond: float64 (n,).

        clip(((max - margin) - length) / margin, -1, 0)

    `lengths_n`: tokens of the completions. Raises `ConfigError` unless 0 < margin_tokens <= max_tokens.
    Source: soft overlong punishment, DAPO, arXiv 2503.14476, equation 13; the defaults are its own.
    """
    if not 0 < margin_tokens <= max_tokens:
        raise ConfigError(f"expected 0 < margin_tokens <= max_tokens, got {margin_tokens} and {max_tokens}")
    return np.clip((max_tokens - margin_tokens - np.asarray(lengths_n, np.float64)) / margin_tokens, -1.0, 0.0)
