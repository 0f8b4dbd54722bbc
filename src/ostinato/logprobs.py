"""Log-probs of chosen tokens, with gradient: from logits, or from hidden states without ever holding all logits.

Shape letters: B rollouts, L token positions, V vocabulary, D width of a hidden state; inside, N positions in a row and
R the part of the vocabulary that is looked at in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ostinato.errors import ConfigError, DataError, MissingExtraError
from ostinato.setting_checks import check_finite, check_whole, shown

try:
    import torch
    from torch import Tensor
    from torch.autograd.function import once_differentiable
except ModuleNotFoundError as error:
    raise MissingExtraError("torch", "hf") from error

BLOCK_ELEMENTS = 2**24
"""Logits in one block: 64 MiB of float32."""

LARGEST = 1e30
"""Of temperature, scale and softcap; its inverse is the smallest. Float32 ends a little further out."""


def selected_logprobs(logits: Tensor, tokens: Tensor, temperature: float | Tensor) -> tuple[Tensor, Tensor]:
    """Log-probs of the tokens that followed, and the entropy of each prediction, in nats: two float32 (B, L-1).

        logprobs = log softmax(logits / temperature)[token]      entropy = -sum_v p_v log p_v   (detached)

    `logits` (B, L-1, V) of any float type; `tokens` int64 (B, L-1), the targets: `batch.tokens[:, 1:]`;
    `temperature` > 0, one number or one a rollout (B,). Top-p and top-k are not applied: log-probs under a truncated
    distribution are larger than these by -log(probability mass that was kept).

    Normalizing keeps one array of the size of the logits for the backward pass and frees the logits themselves;
    subtracting a log-sum-exp would keep the logits and need two more arrays on the way back. `linear_logprobs` keeps
    none.

    A logit of -inf is a token that cannot be chosen: log-prob -inf, no part of the entropy.

    Raises `DataError` for other shapes and types, `ConfigError` for one temperature that is not above 0 (the values of
    a tensor are not looked at: that would wait for the device; nor are the tokens, which must lie in the vocabulary).
    """
    _check(logits, tokens, temperature, "logits")
    if isinstance(temperature, Tensor):
        logits = logits.float() / temperature[:, None, None]
    elif temperature != 1:
        logits = logits.float() / temperature
    log_policy = logits.log_softmax(-1, dtype=torch.float32)
    logprobs = log_policy.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        # 0 times -inf, of tokens that cannot be chosen, is left out; a NaN logit makes its whole row NaN, so is seen.
        entropy = -log_policy.exp().mul_(log_policy).nansum(-1)
        entropy.masked_fill_(logprobs.isnan(), torch.nan)
    return logprobs, entropy


def linear_logprobs(
    hidden: Tensor,
    weight: Tensor,
    tokens: Tensor,
    temperature: float | Tensor,
    *,
    bias: Tensor | None = None,
    scale: float = 1.0,
    softcap: float | None = None,
    mask: Tensor | None = None,
    block_rows: int | None = None,
) -> tuple[Tensor, Tensor]:
    """`selected_logprobs` of a linear output layer, in memory that does not grow with positions times vocabulary.

        z = scale (hidden weight^T + bias)      z = softcap tanh(z / softcap), if given
        logprobs = log softmax(z / temperature)[token]      entropy = -sum_v p_v log p_v   (detached)

    `hidden` (B, L, D); `weight` (V, D), `bias` (V,); `tokens` int64 (B, L); `temperature` > 0, one number or one a
    rollout (B,). Positions outside `mask` bool (B, L) are not computed: log-prob 0, entropy 0, no gradient. A token
    outside the vocabulary has log-prob NaN. Returns two tensors (B, L) in nats: float64 for float64 `hidden`, else
    float32. Gradients reach `hidden`, `weight` and `bias` alone.

    The vocabulary is taken `block_rows` at a time (default: so many that neither their logits nor their weights exceed
    `BLOCK_ELEMENTS`, but a quarter of D when positions are that many), with a running log-sum-exp, which is all that is
    kept; the backward pass computes each block of logits again, so it costs one more matrix product. A block holds all
    positions: so the gradient of its rows of `weight` is complete at once, and no second copy of it is needed in
    another precision. Under autocast the products are of its type, as those of the layer would be, everything else is
    float32.

    Sources: Milakov and Gimelshein, arXiv 1805.02867 (running log-sum-exp); Wijmans et al., arXiv 2411.09009 (never
    storing the logits).

    Raises `DataError` for shapes and types that do not fit, `ConfigError` for a temperature, a softcap or block_rows
    that is not above 0, and for numbers that are none.
    """
    _check(hidden, tokens, temperature, "hidden")
    _check_layer(hidden, weight, bias, tokens, mask)
    if abs(check_finite("scale", scale)) > LARGEST:
        raise ConfigError(f"scale must be between {-LARGEST:g} and {LARGEST:g}, got {scale:g}")
    if softcap is not None:
        _check_number("softcap", softcap)
    if block_rows is not None:
        block_rows = check_whole("block_rows", block_rows, least=1)
    exact = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    if isinstance(temperature, Tensor):
        temperature = temperature.to(exact)[:, None].expand(tokens.shape)
        temperature = (temperature.flatten() if mask is None else temperature[mask])[:, None]
    hidden_ND = hidden.flatten(0, -2) if mask is None else hidden[mask]
    tokens_N = tokens.flatten() if mask is None else tokens[mask]
    width = hidden.shape[-1]
    rows = block_rows or max(BLOCK_ELEMENTS // max(len(hidden_ND), width), width // 4, 1)
    layer = _Layer(scale, softcap, temperature, exact, _product_type(hidden), rows)
    apply: Callable[..., tuple[Tensor, Tensor]] = _LinearLogprobs.apply
    logprobs_N, entropy_N = apply(hidden_ND, weight, bias, tokens_N, layer)
    if mask is None:
        return logprobs_N.view(tokens.shape), entropy_N.view(tokens.shape)
    empty = torch.zeros(tokens.shape, dtype=exact, device=hidden.device)
    return empty.masked_scatter(mask, logprobs_N), empty.masked_scatter(mask, entropy_N)


@dataclass(frozen=True, slots=True)
class _Layer:
    """How logits come from products, and in which types."""

    scale: float
    softcap: float | None
    temperature: float | Tensor  # (N, 1)
    exact: torch.dtype
    product: torch.dtype
    rows: int

    def blocks(
        self, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None
    ) -> Iterator[tuple[int, Tensor, Tensor]]:
        """(first of the vocabulary, weights (R, D), logits (N, R) before the temperature), block after block."""
        product_ND = hidden_ND.to(self.product)
        for start in range(0, len(weight_VD), self.rows):
            part = slice(start, start + self.rows)
            weight_RD = weight_VD[part].to(self.product)
            bias_R = None if bias_V is None else bias_V[part].to(self.product)
            logits_NR = torch.nn.functional.linear(product_ND, weight_RD, bias_R).to(self.exact)
            if self.scale != 1:
                logits_NR.mul_(self.scale)
            if self.softcap is not None:
                logits_NR.div_(self.softcap).tanh_().mul_(self.softcap)
            yield start, weight_RD, logits_NR

    def temper(self, logits_NR: Tensor) -> Tensor:
        """Divide by the temperature, in place."""
        hot = isinstance(self.temperature, Tensor) or self.temperature != 1
        return logits_NR.div_(self.temperature) if hot else logits_NR


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, tokens_N: Tensor, layer: _Layer
    ) -> tuple[Tensor, Tensor]:
        mass_N1, moment_N1 = hidden_ND.new_zeros((2, len(hidden_ND), 1), dtype=layer.exact)
        highest_N1 = torch.full_like(mass_N1, torch.finfo(layer.exact).min)
        chosen_N1 = torch.full_like(mass_N1, torch.nan)
        for start, _, logits_NR in layer.blocks(hidden_ND, weight_VD, bias_V):
            layer.temper(logits_NR)
            index_N1, inside_N1 = _place(tokens_N, start, logits_NR.shape[1])
            chosen_N1 = torch.where(inside_N1, logits_NR.gather(1, index_N1), chosen_N1)
            # Sums over the vocabulary so far of e^(z - highest) and of (z - highest) e^(z - highest).
            before_N1, highest_N1 = highest_N1, torch.maximum(highest_N1, logits_NR.amax(1, keepdim=True))
            shift_N1 = before_N1 - highest_N1
            # Finite even where a token cannot be chosen: 0 times -inf would be no number.
            weights_NR = logits_NR.sub_(highest_N1).clamp_(min=torch.finfo(layer.exact).min).exp()
            moment_N1 = shift_N1.exp() * (moment_N1 + mass_N1 * shift_N1)
            mass_N1 = shift_N1.exp() * mass_N1 + weights_NR.sum(1, keepdim=True)
            moment_N1 += weights_NR.mul_(logits_NR).sum(1, keepdim=True)
        # The two are kept apart: a large logit minus a large one is exact, their sum with a small one is not.
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, tokens_N, highest_N1, mass_N1)
        ctx.layer = layer
        log_mass_N1 = mass_N1.log()
        entropy_N = (log_mass_N1 - moment_N1 / mass_N1).squeeze(1)
        ctx.mark_non_differentiable(entropy_N)
        return (chosen_N1 - highest_N1 - log_mass_N1).squeeze(1), entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, tokens_N, highest_N1, mass_N1 = ctx.saved_tensors
        layer: _Layer = ctx.layer
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        grad_hidden_ND = torch.zeros_like(hidden_ND, dtype=layer.exact) if wants_hidden else None
        grad_weight_VD = torch.empty_like(weight_VD) if wants_weight else None
        grad_bias_V = torch.empty_like(bias_V) if wants_bias else None
        slope_N1 = grad_N[:, None].to(layer.exact) * layer.scale / layer.temperature
        for start, weight_RD, logits_NR in layer.blocks(hidden_ND, weight_VD, bias_V):
            part = slice(start, start + layer.rows)
            flat_NR = None if layer.softcap is None else 1 - (logits_NR / layer.softcap) ** 2
            # slope (1 at the token - p)
            grad_NR = layer.temper(logits_NR).sub_(highest_N1).exp_().mul_(-slope_N1 / mass_N1)
            index_N1, inside_N1 = _place(tokens_N, start, grad_NR.shape[1])
            grad_NR.scatter_add_(1, index_N1, torch.where(inside_N1, slope_N1, 0.0))
            if flat_NR is not None:
                grad_NR.mul_(flat_NR)
            if grad_bias_V is not None:
                grad_bias_V[part] = grad_NR.sum(0)
            grad_NR = grad_NR.to(layer.product)
            if grad_hidden_ND is not None:
                grad_hidden_ND += grad_NR @ weight_RD
            if grad_weight_VD is not None:
                grad_weight_VD[part] = grad_NR.T @ hidden_ND.to(layer.product)
        grad_hidden = None if grad_hidden_ND is None else grad_hidden_ND.to(hidden_ND.dtype)
        return grad_hidden, grad_weight_VD, grad_bias_V, None, None


def _place(tokens_N: Tensor, start: int, rows: int) -> tuple[Tensor, Tensor]:
    """Where the tokens stand in a block of the vocabulary, and whether they do: two (N, 1)."""
    index_N1 = tokens_N[:, None] - start
    return index_N1.clamp(0, rows - 1), (index_N1 >= 0) & (index_N1 < rows)


def _product_type(hidden: Tensor) -> torch.dtype:
    """Of the matrix products: what autocast would take for them."""
    device = hidden.device.type
    if torch.is_autocast_enabled(device) and hidden.dtype != torch.float64:
        return torch.get_autocast_dtype(device)
    return hidden.dtype


def _check(values: Tensor, tokens: Tensor, temperature: float | Tensor, name: str) -> None:
    _check_tensor(name, values, floating=True)
    _check_tensor("tokens", tokens)
    if tokens.dtype not in (torch.int64, torch.int32):
        raise DataError(f"tokens are {tokens.dtype}, expected torch.int64")
    if not values.ndim or tokens.shape != values.shape[:-1]:
        raise DataError(f"tokens have shape {tuple(tokens.shape)}, expected {tuple(values.shape[:-1])} of the {name}")
    if isinstance(temperature, Tensor):
        if temperature.shape != values.shape[:1]:
            raise DataError(f"temperature has shape {tuple(temperature.shape)}, expected {tuple(values.shape[:1])}")
        if temperature.is_complex() or temperature.dtype == torch.bool:
            raise DataError(f"temperature is {temperature.dtype}, expected numbers")
    else:
        _check_number("temperature", temperature, ": a greedy choice has no log-probs")
    if name == "logits" and not values.shape[-1]:
        raise DataError(f"logits have shape {tuple(values.shape)}: the vocabulary is empty")


def _check_layer(hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, mask: Tensor | None) -> None:
    width = hidden.shape[-1]
    if hidden.ndim < 2:
        raise DataError(f"hidden has shape {tuple(hidden.shape)}, expected (rollouts, positions, width)")
    _check_tensor("weight", weight, floating=True)
    if weight.ndim != 2 or weight.shape[1] != width or not len(weight):
        raise DataError(f"weight has shape {tuple(weight.shape)}, expected (vocabulary, {width}) for hidden states")
    for name, value, shape in (("bias", bias, weight.shape[:1]), ("mask", mask, tokens.shape)):
        if value is not None:
            _check_tensor(name, value, floating=name == "bias")
            if value.shape != shape:
                raise DataError(f"{name} has shape {tuple(value.shape)}, expected {tuple(shape)}")
    if mask is not None and mask.dtype != torch.bool:
        raise DataError(f"mask is {mask.dtype}, expected torch.bool")


def _check_tensor(name: str, value: object, *, floating: bool = False) -> None:
    if not isinstance(value, Tensor):
        raise DataError(f"{name}: expected a tensor, got {type(value).__name__}")
    if floating and not value.is_floating_point():
        raise DataError(f"{name}: expected floating-point numbers, got {value.dtype}")


def _check_number(name: str, value: object, because: str = "") -> None:
    """One number above 0 that float32 and its inverse can hold: beyond, logits would be inf times 0."""
    number = check_finite(name, value)
    if number <= 0:
        raise ConfigError(f"{name} must be above 0, got {shown(value)}{because}")
    if not 1 / LARGEST <= number <= LARGEST:
        raise ConfigError(f"{name} must be between {1 / LARGEST:g} and {LARGEST:g}, got {number:g}")
