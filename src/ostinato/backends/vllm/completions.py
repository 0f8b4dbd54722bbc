"""One request to vLLM's engine, and what comes back."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ostinato.backends.completed import completed_group
from ostinato.errors import ConfigError, RunError
from ostinato.protocols import GroupRequest, Sampling
from ostinato.rollouts import Rollouts

LEAST_TEMPERATURE = 0.01
"""vLLM raises a lower one to it, silently but for a line in its log."""

AGAIN_S = 0.5
"""Between two attempts to end a request."""


def check_sampling(sampling: Sampling) -> None:
    """Raise `ConfigError` for what vLLM would change."""
    if 0 < sampling.temperature < LEAST_TEMPERATURE:
        raise ConfigError(
            f"temperature {sampling.temperature:g}: vLLM draws at {LEAST_TEMPERATURE} or above; 0 is greedy"
        )


def sampling_params(request: GroupRequest, eos_token_id: int) -> Any:
    """vLLM's `SamplingParams`: `group_size` completions with the log-probs of their tokens, a random stream each.

    A completion ends with the end-of-sequence token, which belongs to it, or at its length. Greedy ones are all the
    same, so one is asked for.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = request.sampling
    # vLLM gives completion i the seed plus i: neighbors of random 62-bit numbers do not meet.
    seed = int(np.random.SeedSequence(request.seed).generate_state(1, np.uint64)[0] >> np.uint64(2))
    return SamplingParams(
        n=request.group_size if sampling.temperature else 1,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_tokens=sampling.max_new_tokens,
        seed=seed,
        ignore_eos=True,
        stop_token_ids=[eos_token_id],
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


async def complete(
    engine: Any, prompt: Sequence[int], params: Any, version: Callable[[], int], cut_after_s: float | None = None
) -> tuple[list[Any], int]:
    """vLLM's `CompletionOutput` of each completion, once all are finished, and the version held then; again from the
    start where new weights (pause = abort) have ended some.

    `version()`: that of the weights held now. It salts the keys of the prefix cache: what older weights computed is
    never met again, whether vLLM has cleared it or not. `cut_after_s`: what is not finished by then ends where it is.
    """
    from vllm.inputs.engine import tokens_input

    cut = _Cut(engine, cut_after_s)
    while True:
        inputs, name = tokens_input(list(prompt), cache_salt=str(version())), uuid.uuid4().hex
        async with cut.watching(name):
            outputs = [output async for output in engine.generate(inputs, params, request_id=name)]
        output = outputs[-1]
        reasons = {completion.finish_reason for completion in output.outputs}
        if cut.done or "abort" not in reasons:
            break
    if not reasons <= ({"stop", "length", "abort"} if cut.done else {"stop", "length"}):
        raise RunError(f"vLLM ended a completion with {sorted(reasons)}, expected stop or length")
    return sorted(output.outputs, key=lambda completion: int(completion.index)), version()


class _Cut:
    """Ends a request that is not finished `after_s` seconds from now; `done`: it has."""

    def __init__(self, engine: Any, after_s: float | None) -> None:
        self.done = False
        self._engine = engine
        self._until = None if after_s is None else asyncio.get_running_loop().time() + after_s

    @asynccontextmanager
    async def watching(self, name: str) -> AsyncIterator[None]:
        """While the block waits for the request of this name."""
        if self._until is None:
            yield
            return
        left = asyncio.Event()
        task = asyncio.ensure_future(self._end(name, self._until, left))
        try:
            yield
        finally:
            left.set()
            if not self.done:
                task.cancel()
        if self.done:
            await task  # the engine hears of it too

    async def _end(self, name: str, until: float, left: asyncio.Event) -> None:
        await asyncio.sleep(until - asyncio.get_running_loop().time())
        self.done = True
        while not left.is_set():  # an engine that does not know the request yet passes an abort over
            await self._engine.abort(name)
            with suppress(TimeoutError):
                await asyncio.wait_for(left.wait(), AGAIN_S)


def group_of(
    request: GroupRequest,
    prompt: Sequence[int],
    outputs: Sequence[Any],
    *,
    eos_token_id: int,
    by_token: bool,
    held: int,
) -> Rollouts:
    """The finished group. `by_token`: with the version of every token; `held`: that of completions without any.

    Raises `RunError` when a log-prob is not finite, or vLLM does not say which weights a token came from.
    """
    if len(outputs) == 1:
        outputs = [*outputs] * request.group_size
    tokens = [list(output.token_ids) for output in outputs]
    versions = [token_versions(output) for output in outputs]
    truncated = np.array([row[-1:] != [eos_token_id] for row in tokens])
    return completed_group(
        request,
        prompt,
        tokens,
        [_logprobs(output, request.sampling) for output in outputs],
        truncated,
        versions=versions if by_token else _the_one(versions, held),
        held=held,
    )


def token_versions(output: Any) -> NDArray[np.int32]:
    """Policy version of each token of a completion, as the engine stamped it when it drew the token: int32 (K,)."""
    spans = output.weight_versions or []
    versions = np.repeat(
        np.array([int(span.version) for span in spans], np.int32), [span.end - span.start for span in spans]
    )
    if len(versions) != len(output.token_ids):
        raise RunError(f"vLLM told the weights of {len(versions)} of {len(output.token_ids)} tokens")
    return versions


def _the_one(versions: Sequence[NDArray[np.int32]], held: int) -> int:
    found = np.unique(np.concatenate(versions))
    if not len(found):
        return held
    if len(found) != 1:
        raise RunError(f"a group was drawn under the versions {found.tolist()}, expected one")
    return int(found[0])


def _logprobs(output: Any, sampling: Sampling) -> list[float]:
    # vLLM tells a greedy token its log-prob at temperature 1; it was certain.
    if sampling.temperature == 0 or not output.token_ids:
        return [0.0] * len(output.token_ids)
    flat = output.logprobs
    if list(flat.token_ids) != list(output.token_ids):
        raise RunError("vLLM gave log-probs of other tokens than it drew")
    logprobs = list(flat.logprobs)
    if not np.isfinite(logprobs).all():
        raise RunError("decoding met log-probs that are not finite: the weights of the generator are broken")
    return logprobs
