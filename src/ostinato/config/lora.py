"""The section `lora` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.config.setting import setting

ALL_LINEAR = "all-linear"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraConfig:
    """Low-rank adapters in place of training every weight (peft). Without dropout: it would tell the trainer's
    log-probs from the generator's."""

    rank: int = setting(0, "rank of the adapters; 0: train every weight", low=0, high=1 << 16)
    alpha: int = setting(32, "the update is scaled by alpha / rank", low=1)
    target_modules: str = setting(
        ALL_LINEAR, "layers with an adapter: all-linear (but the output layer), or the ends of their names, by commas"
    )
    sync: str = setting(
        "merged",
        "what generators get: merged (whole weights, as of a plain model) or adapter (these alone; generator = hf)",
        choices=("merged", "adapter"),
    )

    @property
    def targets(self) -> str | list[str]:
        """`target_modules` as peft takes them."""
        names = [name.strip() for name in self.target_modules.split(",")]
        return ALL_LINEAR if names == [ALL_LINEAR] else [name for name in names if name]
