"""New weights for a running engine: vLLM's weight-transfer calls, and the engine's word that it holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ostinato.backends.vllm.engine_thread import EngineThread
from ostinato.errors import RunError
from ostinato.protocols import Weights

if TYPE_CHECKING:
    from ostinato.backends.vllm.shared_weights import SharedSender


class WeightClient:
    """vLLM's `VLLMWeightSyncClient`: what the sending side of a transfer asks of the engine, from any thread."""

    def __init__(self, thread: EngineThread) -> None:
        self._thread = thread

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Let the workers meet the sender."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        self._thread.call(self._thread.engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info)))

    def start_weight_update(self) -> None:
        """Expect new weights."""
        self._thread.call(self._thread.engine.start_weight_update())

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Receive some of them."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        self._thread.call(self._thread.engine.update_weights(WeightTransferUpdateRequest(update_info)))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Take them into use."""
        self._thread.call(self._thread.engine.finish_weight_update(weight_version))

    def shared_sender(self, parameters: Mapping[str, Tensor]) -> SharedSender:
        """A sender through shared memory, which the workers have met."""
        from ostinato.backends.vllm.shared_weights import SharedSender

        sender = SharedSender({name: tuple(parameter.shape) for name, parameter in parameters.items()})
        try:
            self.init_weight_transfer_engine(sender.init_info)
        finally:
            sender.forget_name()
        return sender


async def set_version(engine: Any, version: int) -> None:
    """Stamp every token from now on with `version`."""
    await engine.update_weight_version(str(version))


async def confirm(engine: Any, version: int, weights: Weights | None) -> None:
    """Raise `RunError` unless the engine says `version`, and its workers hold the one-dimensional `weights`."""
    from ostinato.backends.vllm.shared_weights import checksum

    held = await engine.get_weight_version()
    if held != str(version):
        raise RunError(f"vLLM's engine says it holds the weights {held}, expected version {version}")
    if weights is None:
        return
    for rank, worker in enumerate(await engine.collective_rpc("vector_checksums")):
        for name, (dtype, length, found) in worker.items():
            sent = torch.as_tensor(weights[name]) if name in weights else None
            if sent is None or sent.shape != (length,):
                continue
            if checksum(sent.to(getattr(torch, dtype))) != found:
                raise RunError(f"vLLM's worker {rank} does not hold version {version} of {name}, which was sent")
