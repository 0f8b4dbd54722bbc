"""Finished completions of one request as `Rollouts`: what every engine of a language model hands back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.protocols import GroupRequest
from ostinato.ragged import Ragged
from ostinato.rollouts import Rollouts

TOKEN_VERSIONS = "token_versions"
"""Extra column: the policy version of each token of a rollout, -1 for its prompt."""


def completed_group(
    request: GroupRequest,
    prompt: Sequence[int],
    tokens: Sequence[Sequence[int]],
    logprobs: Sequence[Sequence[float]],
    truncated: NDArray[np.bool_],
    *,
    versions: int | Sequence[NDArray[np.int32]],
    held: int = 0,
) -> Rollouts:
    """The unscored group of `request`, G completions.

    `tokens`: end-of-sequence token included; `logprobs` (nats) of those they were drawn from; `truncated` (G,): the
    length limit came first. `versions`: the policy version of all tokens, or one a token, which then also stand in
    the extra column `token_versions` (int32, as long as the rollout); `held`: of a completion without a token.
    """
    if isinstance(versions, int):
        columns: dict[str, Any] = {"policy_version_min": versions}
    else:
        columns = {
            "policy_version_min": np.array([row.min() if len(row) else held for row in versions], np.int64),
            "policy_version_max": np.array([row.max() if len(row) else held for row in versions], np.int64),
            "extras": {
                TOKEN_VERSIONS: Ragged.from_rows(
                    [np.concatenate([np.full(len(prompt), -1, np.int32), row]) for row in versions]
                )
            },
        }
    sampling = request.sampling
    return Rollouts.from_completions(
        [prompt] * request.group_size,
        tokens,
        logprobs,
        prompt_id=request.task.prompt_id,
        group_id=request.group_id,
        birth_step=request.birth_step,
        truncated=truncated,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        source=request.task.source,
        **columns,
    )
