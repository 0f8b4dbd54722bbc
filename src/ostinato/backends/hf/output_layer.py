"""What a model of transformers does between its last hidden states and its logits, where that is understood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ostinato.logprobs import linear_logprobs, selected_logprobs

# Names in model configurations: Cohere, Muse Glimmer, Falcon-H1; Granite; Gemma and others, RecurrentGemma.
FACTORS = ("logit_scale", "output_multiplier", "lm_head_multiplier")
DIVISOR = "logits_scaling"
SOFTCAPS = ("final_logit_softcapping", "logits_soft_cap")
TOLERANCE = 1e-3
ROUNDED_TOLERANCE = 2e-2
"""Of log-probs and entropies, absolute and relative; rounded: where logits are of 16 bits."""


@dataclass(frozen=True, slots=True)
class OutputLayer:
    """logits = softcap tanh(scale (hidden weight^T + bias) / softcap); see `linear_logprobs`."""

    weight: Tensor
    bias: Tensor | None
    scale: float
    softcap: float | None

    def logprobs(
        self, hidden: Tensor, tokens: Tensor, temperature: float | Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """`linear_logprobs` of this layer."""
        return linear_logprobs(
            hidden,
            self.weight,
            tokens,
            temperature,
            bias=self.bias,
            scale=self.scale,
            softcap=self.softcap,
            mask=mask,
        )

    def explains(self, logits: Tensor, hidden: Tensor, tokens: Tensor) -> bool:
        """Whether these logits (B, L, V) of the model lead to the log-probs and entropies that this layer finds."""
        with torch.no_grad():
            expected, found = selected_logprobs(logits, tokens, 1.0), self.logprobs(hidden, tokens, 1.0)
        tolerance = TOLERANCE if logits.dtype.itemsize >= 4 else ROUNDED_TOLERANCE
        return torch.allclose(torch.stack(found).float(), torch.stack(expected), rtol=tolerance, atol=tolerance)


def output_layer(model: Any) -> OutputLayer | None:
    """The model's layer, or None: where it is not a plain `torch.nn.Linear` (quantized, with an adapter, with hooks),
    whose parameters would miss their gradient."""
    head = model.get_output_embeddings()
    if type(head) is not torch.nn.Linear or head._forward_hooks or head._forward_pre_hooks:
        return None
    config = model.config.get_text_config()
    scale, softcap = _number(config, FACTORS, 1.0), _number(config, SOFTCAPS, None)
    divisor = _number(config, (DIVISOR,), 1.0)
    return OutputLayer(head.weight, head.bias, scale / divisor, softcap)


def _number(config: Any, names: tuple[str, ...], default: Any) -> Any:
    found = (getattr(config, name, None) for name in names)
    return next((value for value in found if isinstance(value, int | float) and value), default)
