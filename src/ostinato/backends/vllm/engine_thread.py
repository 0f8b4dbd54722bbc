"""vLLM's asynchronous engine on an event loop in a thread of its own, for callers that are threads."""

from __future__ import annotations

import asyncio
import signal
import threading
import warnings
import weakref
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from multiprocessing import resource_tracker
from typing import Any, TypeVar

from ostinato.backends.vllm.environment import add_cpu_environment, start_environment
from ostinato.errors import ConfigError, OstinatoError, RunError

Result = TypeVar("Result")

DEATH_CHECK_S = 0.5
"""How often a waiting call looks whether the engine lives: vLLM leaves those unanswered that were under way."""


class EngineThread:
    """A running `AsyncLLM`, in `engine`; it ends with `close()`, with this object or with the interpreter.

    `arguments`: of `AsyncEngineArgs`. Raises `ConfigError` when vLLM refuses them, `RunError` when it cannot start.
    """

    def __init__(self, arguments: Mapping[str, Any], threads: int) -> None:
        self.engine: Any = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ostinato-vllm", daemon=True)
        self._thread.start()
        self._ended = threading.Event()
        try:
            with start_environment(threads):
                self.engine = asyncio.run_coroutine_threadsafe(_start(arguments), self._loop).result()
        except BaseException:
            _end(self._loop, self._thread, self._ended, None)
            raise
        self.close = weakref.finalize(self, _end, self._loop, self._thread, self._ended, self.engine)

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Start `work` on the event loop. Its errors are the project's own: `RunError` when the engine has died."""
        if self._ended.is_set():
            work.close()
            raise RunError("vLLM's engine has been closed")
        return asyncio.run_coroutine_threadsafe(_watched(self.engine, self._ended, work), self._loop)

    def call(self, work: Coroutine[Any, Any, Result]) -> Result:
        """`submit`, and wait."""
        return self.submit(work).result()


async def _watched(engine: Any, ended: threading.Event, work: Coroutine[Any, Any, Result]) -> Result:
    from vllm.v1.engine.exceptions import EngineDeadError

    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=DEATH_CHECK_S)
            if ended.is_set():
                raise RunError("vLLM's engine was closed while it worked")
            if not task.done() and engine.errored:
                raise EngineDeadError
        return task.result()
    except EngineDeadError as error:
        raise RunError("vLLM's engine process has died; what it wrote before stands in the output") from error
    except (OstinatoError, asyncio.CancelledError):
        raise
    except Exception as error:  # what vLLM raises is of every type, and of vLLM's own versions
        cause = error.__cause__ or error
        raise RunError(f"vLLM failed: {type(cause).__name__}: {_first_line(cause)}") from error
    finally:
        task.cancel()


async def _start(arguments: Mapping[str, Any]) -> Any:
    # Ctrl-C is for the trainer, which ends the engine when its step is done. Children inherit the mask of this thread;
    # Python's tracker of shared memory would lift it when it starts, so it starts first.
    resource_tracker.ensure_running()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of vLLM's dependencies, at import and while they read a model
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        if current_platform.is_cpu():
            add_cpu_environment()
            _check_alone(arguments["tensor_parallel_size"])
        try:
            config = AsyncEngineArgs(**{**arguments, **_of_platform(current_platform)}).create_engine_config()
        except (ValueError, OSError, NotImplementedError) as error:
            raise ConfigError(f"vLLM refuses {arguments['model']}: {_first_line(error)}") from error
        if current_platform.is_cpu():
            _check_head_size(config.model_config.get_head_size())
        try:
            return AsyncLLM.from_vllm_config(config, disable_log_stats=True)
        except Exception as error:
            raise RunError(
                f"vLLM could not start on {arguments['model']}: {_first_line(error)} Its reason stands in the output; "
                "memory is the usual one: vllm.kv_cache_gib, vllm.gpu_memory_utilization, vllm.max_model_len"
            ) from error


def _of_platform(platform: Any) -> dict[str, Any]:
    if platform.is_cpu():
        # A seeded request whose prompt is read in pieces ends vLLM 0.32 on a CPU ("CPU Generator does not use offset").
        return {"distributed_executor_backend": "uni", "enforce_eager": True, "enable_chunked_prefill": False}
    return {"enable_sleep_mode": platform.is_sleep_mode_available()}


def _check_alone(processes: int) -> None:
    if processes > 1:  # vLLM would wait for the others, which nobody starts
        raise ConfigError(
            f"vllm.tensor_parallel_size {processes} is for GPUs: on a CPU an engine is one process, set it to 1; "
            "`threads` says how many cores it computes on"
        )


def _check_head_size(size: int) -> None:
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    possible = CPUAttentionBackend.get_supported_head_sizes()
    if size not in possible:
        raise ConfigError(
            f"attention heads of size {size}: vLLM on a CPU takes {possible}; for a built model choose model.heads so "
            "that model.hidden_size / model.heads is one of them"
        )


def _first_line(error: BaseException) -> str:
    from pydantic import ValidationError

    text = str(error)
    if isinstance(error, ValidationError):  # whose first line only says how many there are
        first = error.errors()[0]
        text = ": ".join([*map(str, first["loc"]), first["msg"].removeprefix("Value error, ")])
    return next((line for line in text.splitlines() if line.strip()), type(error).__name__).strip()


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread, ended: threading.Event, engine: Any) -> None:
    ended.set()
    outside = thread is not threading.current_thread()
    if outside:
        asyncio.run_coroutine_threadsafe(_settle(), loop).result(timeout=5)
    if engine is not None:
        engine.shutdown()
    loop.call_soon_threadsafe(loop.stop)
    if outside:
        thread.join(timeout=5)
    if not thread.is_alive():
        loop.close()


async def _settle() -> None:
    """Let everything that waits for the engine hear that it has ended, then end the engine's own tasks: its process
    would be missed by them."""
    waiting = [task for task in _others() if getattr(task.get_coro(), "__name__", "") == _watched.__name__]
    if waiting:
        await asyncio.wait(waiting, timeout=2 * DEATH_CHECK_S)
    for task in _others():
        task.cancel()


def _others() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
