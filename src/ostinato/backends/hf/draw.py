"""One token from each row of logits: temperature, top-k, top-p, and the uniform number that decides."""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.protocols import Sampling


def draw_tokens(logits_BV: Tensor, uniforms_B: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """(tokens int64 (B,), log-probs float32 (B,)), by inverting the cumulative distribution at `uniforms_B` in [0, 1).

    The log-probs (nats) belong to the distribution drawn from: after temperature, then top-k, then top-p. Temperature 0
    takes the largest logit, with log-prob 0.
    """
    if sampling.temperature == 0:
        tokens = logits_BV.argmax(-1)
        return tokens, torch.zeros_like(tokens, dtype=torch.float32)
    logprobs = sampling_logprobs(logits_BV, sampling)
    cumulative = logprobs.double().exp().cumsum(-1)
    target = uniforms_B.double().unsqueeze(-1) * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, target, right=True).clamp_(max=logits_BV.shape[-1] - 1)
    return tokens.squeeze(-1), logprobs.gather(-1, tokens).squeeze(-1)


def sampling_logprobs(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Log-probs float32 (B, V) of the distribution that is sampled from; -inf where top-k or top-p cut.

    top-k keeps ties with the k-th logit; top-p keeps the fewest most likely tokens whose mass reaches p.
    Source: nucleus sampling, Holtzman et al. 2020, arXiv 1904.09751, section 3.1.
    """
    logits = logits_BV.float() / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        mass = ordered.softmax(-1)
        cut = mass.cumsum(-1) - mass >= sampling.top_p
        logits = logits.masked_fill(cut.scatter(-1, order, cut), -torch.inf)
    return logits.log_softmax(-1)
