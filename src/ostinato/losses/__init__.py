"""Policy losses as pure functions of tensors."""

from ostinato.errors import MissingExtraError

try:
    from ostinato.losses.asymre import asymre
    from ostinato.losses.grpo import grpo
    from ostinato.losses.output import LossOutput
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingExtraError("torch", "hf") from error

__all__ = ["LossOutput", "asymre", "grpo"]
