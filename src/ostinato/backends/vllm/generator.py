"""Rollouts from vLLM's asynchronous engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers

from ostinato.backends.hf.models import check_fits, quiet
from ostinato.backends.hf.tokenizer import encode_request
from ostinato.backends.vllm.completions import check_sampling, complete, group_of, sampling_params
from ostinato.backends.vllm.engine_thread import EngineThread
from ostinato.backends.vllm.update import WeightClient, confirm, set_version
from ostinato.config import VllmConfig
from ostinato.errors import ConfigError, RunError
from ostinato.protocols import GroupRequest, Weights
from ostinato.rollouts import Rollouts

if TYPE_CHECKING:
    from ostinato.backends.vllm.shared_weights import SharedSender

GIB = 2**30


class VLLMGenerator:
    """A `protocols.Generator` and `protocols.Sleeper` on vLLM: any causal language model that it knows.

    `model`: a directory (or hub name) with weights and tokenizer, version 0. `bf16`: where `config.dtype` leaves it
    open. `threads`: of arithmetic on a CPU. The engine starts when it is first used, or by `start()`; it is a process
    of its own and ends with `close()`, with this object or with the interpreter. All arguments can be pickled.

    Any thread may call: each `stream` adds its requests to those the engine decodes at once, and a group is handed
    over when it is finished, whatever others are under way. With `config.pause = "keep"` groups have the extra column
    `token_versions`, see `ostinato.backends.completed`.

    `weight_transfer`: how new weights come, "shared" (by `load`, through shared memory), or "nccl" or "ipc": a trainer
    sends them from its GPU by vLLM's own `WeightTransferTrainerFactory`, with `client`, inside `updating`.
    Raises `ConfigError` when nothing can be loaded from `model`.
    """

    def __init__(
        self,
        model: str | Path,
        config: VllmConfig | None = None,
        *,
        bf16: bool = False,
        threads: int = 1,
        weight_transfer: str = "shared",
    ) -> None:
        self._model, self._config, self._threads = str(model), config or VllmConfig(), threads
        self._dtype = self._config.dtype or ("bfloat16" if bf16 else "float32")
        self._weight_transfer = weight_transfer
        with quiet():
            try:
                self._tokenizer = transformers.AutoTokenizer.from_pretrained(self._model)
                self._architecture = transformers.AutoConfig.from_pretrained(self._model)
            except (OSError, ValueError) as error:
                raise ConfigError(f"vLLM needs a model directory with a tokenizer, got {self._model!r}") from error
        self._lock = threading.RLock()
        self._engine: EngineThread | None = None
        self._client: WeightClient | None = None
        self._sender: SharedSender | None = None
        self._version, self._loads = 0, 0
        self._counting, self._under_way = threading.Lock(), 0  # completions that are asked for and not finished
        self._asleep = self._emptied = self._closed = False

    def start(self) -> None:
        """Start the engine unless it runs. Raises `ConfigError` or `RunError` where vLLM cannot."""
        self._started()

    def load(self, weights: Weights, version: int) -> None:
        """New weights in place; returns when the engine has confirmed them. What was running meets
        `config.pause`, what is asked for from now on has `version`.

        Several threads may want the same: it is loaded once for all that wait. Raises `DataError` when names or shapes
        are not the model's (the engine goes on as it was), `RunError` when the engine failed or does not hold what was
        sent; it is closed then.
        """
        seen = self._loads
        with self._lock:
            if self._loads != seen and self._version == version and not self._emptied:
                return
            client, sender = self.client, self._sender
            if sender is None:
                raise ConfigError(f"weight_transfer = {self._weight_transfer}: the trainer sends, `load` does not")
            check_fits(self._parameters, weights)
            with self.updating(version, weights):
                sender.write(weights)
                client.start_weight_update()
                client.update_weights({})
                client.finish_weight_update()

    @contextmanager
    def updating(self, version: int, weights: Weights | None = None) -> Iterator[None]:
        """While the block sends new weights, the engine pauses as `config.pause` says; then it must confirm `version`
        and, where they are given here, the one-dimensional `weights` of every worker, bit for bit.

        Raises `RunError` as `load` does.
        """
        with self._lock:
            thread = self._started()
            if self._asleep:
                raise RunError("the engine sleeps: wake it before new weights are loaded")
            clear = self._config.clear_cache or self._config.pause != "keep"
            thread.call(thread.engine.pause_generation(mode=self._config.pause, clear_cache=clear))
            try:
                yield
                thread.call(set_version(thread.engine, version))
                thread.call(confirm(thread.engine, version, weights))
            except BaseException:
                self.close()  # it may hold half of each
                raise
            self._version, self._emptied = version, False
            self._loads += 1
            thread.call(thread.engine.resume_generation())

    @property
    def client(self) -> WeightClient:
        """vLLM's `VLLMWeightSyncClient` for this engine."""
        self._started()
        assert self._client is not None
        return self._client

    def stream(self, requests: Sequence[GroupRequest]) -> Iterator[Rollouts]:
        """Yield the unscored group of each request, in order; the engine works on all of them from the start.

        The random stream of a completion is that of its request, so it is drawn again the same, as far as the model's
        arithmetic does not depend on companions. An iterator that is closed takes its requests back.
        Raises `DataError` for a prompt that is empty, has unknown characters or does not fit into the context,
        `ConfigError` for a temperature that vLLM would change, `RunError` when the engine has failed or has no weights.
        """
        context = self._context_tokens()
        prompts = [encode_request(self._tokenizer, request, context) for request in requests]
        for request in requests:
            check_sampling(request.sampling)
        thread, eos = self._started(), int(self._tokenizer.eos_token_id)
        if self._asleep or self._emptied:
            raise RunError(
                f"the engine {'sleeps: wake it' if self._asleep else 'woke without weights: load them'} first"
            )
        params = [sampling_params(request, eos) for request in requests]
        with self._asked_for(sum(one.n for one in params)) as limit_s:
            pending = [
                thread.submit(complete(thread.engine, prompt, one, lambda: self._version, limit_s))
                for prompt, one in zip(prompts, params, strict=True)
            ]
            try:
                for request, prompt, future in zip(requests, prompts, pending, strict=True):
                    by_token = self._config.pause == "keep"
                    outputs, held = future.result()
                    yield group_of(request, prompt, outputs, eos_token_id=eos, by_token=by_token, held=held)
            finally:
                for future in pending:
                    future.cancel()

    def sleep(self) -> None:
        """Let what runs finish, then free GPU memory as `config.sleep_level` says. A CPU keeps it and is idle."""
        with self._lock:
            if self._engine is not None and not self._asleep:
                thread = self._started()
                thread.call(thread.engine.sleep(level=self._config.sleep_level, mode="wait"))
                self._asleep, self._emptied = True, self._config.sleep_level == 2

    def wake(self) -> None:
        """Be ready again; after `sleep_level` 2 for `load`, then for `stream`."""
        with self._lock:
            if self._asleep:
                thread = self._started()
                thread.call(thread.engine.wake_up())
                self._asleep = False

    def close(self) -> None:
        """End the engine. What waits for it gets `RunError`."""
        self._closed = True
        thread, self._engine, self._client, self._sender = self._engine, None, None, None
        if thread is not None:
            thread.close()

    def _started(self) -> EngineThread:
        with self._lock:
            if self._closed:
                raise RunError("vLLM's engine has been closed, or failed at its weights: make a new one")
            if self._engine is None:
                self._parameters = _parameters(self._architecture)
                thread = EngineThread(self._arguments(), self._threads)
                self._engine, self._client = thread, WeightClient(thread)
                thread.call(thread.engine.collective_rpc("end_with_parent"))
                thread.call(set_version(thread.engine, self._version))
                if self._weight_transfer == "shared":
                    self._sender = self._client.shared_sender(self._parameters)
            return self._engine

    @contextmanager
    def _asked_for(self, completions: int) -> Iterator[float | None]:
        """Count these as under way for the time of the block; gives the seconds they may take, None: as they need.

        Those that wait for their turn have the time of those before them.
        """
        with self._counting:
            self._under_way += completions
            turns = -(-self._under_way // self._config.max_num_seqs)
        limit_s = self._config.completion_timeout_s
        try:
            yield None if limit_s is None else limit_s * turns
        finally:
            with self._counting:
                self._under_way -= completions

    def _context_tokens(self) -> int:
        longest = int(self._architecture.max_position_embeddings)
        return min(longest, self._config.max_model_len or longest)

    def _arguments(self) -> dict[str, Any]:
        """Of vLLM's `AsyncEngineArgs`."""
        config, own = self._config, self._weight_transfer == "shared"
        cache_gib = config.kv_cache_gib
        if cache_gib is None and not torch.cuda.is_available():
            cache_gib = 1.0
        return {
            "model": self._model,
            "dtype": self._dtype,
            "skip_tokenizer_init": True,
            "generation_config": "vllm",  # sampling is the request's, never the model directory's
            "logprobs_mode": "processed_logprobs",
            "gpu_memory_utilization": config.gpu_memory_utilization,
            "kv_cache_memory_bytes": None if cache_gib is None else int(cache_gib * GIB),
            "max_model_len": config.max_model_len,
            "max_num_seqs": config.max_num_seqs,
            "tensor_parallel_size": config.tensor_parallel_size,
            "enforce_eager": config.enforce_eager,
            "weight_transfer_config": {"backend": "ostinato_shared" if own else self._weight_transfer},
            "worker_extension_cls": "ostinato.backends.vllm.shared_weights.WorkerExtension",
            "use_tqdm_on_load": False,
            "seed": 0,
        }


def _parameters(architecture: Any) -> Mapping[str, torch.Tensor]:
    """What a trainer's snapshot holds: the parameters of the model by name, without memory."""
    with torch.device("meta"), quiet():
        model = transformers.AutoModelForCausalLM.from_config(architecture)
    return dict(model.named_parameters())
