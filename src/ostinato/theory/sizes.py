"""Memory of a trainer and of a generator, in bytes, from the sizes of a decoder-only transformer.

Weights, gradients and optimizer are exact. Activations are an estimate: what a block of attention, gated MLP and two
norms keeps for its backward pass with a fused attention kernel, counted as in Korthikanti et al. 2022 (arXiv
2205.05198), whose MLP has no gate. Logits, fragments, communication and the engine's own buffers are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.setting_checks import check_whole

FLOAT32, BF16 = 4, 2
AUTOCAST = 3
"""Bytes of an activation under bf16 autocast, where norms stay float32: between 2 and 4, an estimate."""

ADAM_MOMENTS = 2


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """A causal language model: `layers` blocks of grouped-query attention and a gated MLP. Raises `ConfigError` for a
    size below 1. `tied`: the output layer is the embedding; `qk_norm`: norms of queries and keys (Qwen3); `qkv_bias`:
    biases of query, key and value (Qwen2)."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    qk_norm: bool = False
    qkv_bias: bool = False

    def __post_init__(self) -> None:
        for name in ("hidden", "intermediate", "layers", "heads", "kv_heads", "head_size", "vocabulary"):
            check_whole(name, getattr(self, name), least=1)

    @property
    def block_parameters(self) -> int:
        """Of one block."""
        attention = self.hidden * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        bias = (self.heads + 2 * self.kv_heads) * self.head_size if self.qkv_bias else 0
        norms = 2 * self.hidden + (2 * self.head_size if self.qk_norm else 0)
        return attention + bias + 3 * self.hidden * self.intermediate + norms

    @property
    def embedding_parameters(self) -> int:
        """Of the embedding, and of the output layer where it is another."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """Of the model."""
        return self.layers * self.block_parameters + self.embedding_parameters + self.hidden

    @property
    def kv_values(self) -> int:
        """Keys and values of one token, in numbers."""
        return 2 * self.layers * self.kv_heads * self.head_size

    def adapter_parameters(self, rank: int) -> int:
        """Of low-rank adapters on every linear layer of the blocks: rank (inputs + outputs) each."""
        h, i, q, kv = self.hidden, self.intermediate, self.heads * self.head_size, self.kv_heads * self.head_size
        return self.layers * rank * (2 * (h + q) + 2 * (h + kv) + 3 * (h + i))


@dataclass(frozen=True, slots=True)
class TrainerMemory:
    """Bytes on one GPU. `whole_layers`: what is gathered of spread weights, or kept in bf16, while computing."""

    weights: int
    gradients: int
    optimizer: int
    whole_layers: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.optimizer + self.whole_layers + self.activations


def trainer_memory(
    model: ModelSizes,
    *,
    tokens: int,
    bf16: bool,
    checkpointing: bool,
    replicas: int = 1,
    spread: bool = False,
    adapter_rank: int = 0,
    reference: bool = False,
) -> TrainerMemory:
    """One of `replicas` trainers that passes `tokens` forward at a time.

    float32 weights, gradients and Adam's two moments: 16 bytes a parameter, divided by the replicas where they are
    `spread` (FSDP); with adapters only these have gradients and moments. `reference`: the frozen copy of a loss with a
    KL; with adapters it is the model itself. Under bf16 autocast linear weights are kept in bf16 as well during a pass,
    those of a frozen base in bf16 alone. Where weights are spread, a block is whole while it computes and the next one
    is on its way, in bf16 under autocast, the gradient of the block too; embedding and output layer are whole
    throughout, and their gradients. Raises `ConfigError` for a number below 1.
    """
    check_whole("tokens", tokens, least=1)
    check_whole("replicas", replicas, least=1)
    share = replicas if spread else 1
    adapters = model.adapter_parameters(adapter_rank)
    trained = adapters if adapter_rank else model.parameters
    blocks, output = model.layers * model.block_parameters, model.vocabulary * model.hidden
    frozen_in_bf16 = bf16 and adapter_rank > 0 and not spread
    base = FLOAT32 * model.parameters - ((FLOAT32 - BF16) * blocks if frozen_in_bf16 else 0)
    copies = 2 if reference and not adapter_rank else 1
    cast = BF16 * (output if spread or frozen_in_bf16 else blocks + output) if bf16 else 0
    gathered = 0
    if share > 1:
        with_gradient = 0 if adapter_rank else 1
        gathered = (BF16 if bf16 else FLOAT32) * (2 + with_gradient) * model.block_parameters
        gathered += FLOAT32 * (1 + with_gradient) * model.embedding_parameters
    block = (AUTOCAST if bf16 else FLOAT32) * block_activations(model)
    # The inputs of blocks, the residual stream, stay float32 under autocast.
    kept = model.layers * FLOAT32 * model.hidden + block if checkpointing else model.layers * block
    return TrainerMemory(
        weights=(copies * base + FLOAT32 * adapters) // share,
        gradients=FLOAT32 * trained // share,
        optimizer=ADAM_MOMENTS * FLOAT32 * trained // share,
        whole_layers=cast + gathered,
        activations=tokens * kept,
    )


def block_activations(model: ModelSizes) -> int:
    """Numbers a token that one block keeps for its backward pass: 7 of the width (inputs, normalized inputs and scaled
    ones of both norms, the attention's result), queries, keys and values, 4 of the MLP (gate, activated gate, up, their
    product); with norms of queries and keys, 2 more of each."""
    q, kv = model.heads * model.head_size, model.kv_heads * model.head_size
    normed = 2 * (q + kv) if model.qk_norm else 0
    return 7 * model.hidden + 4 * model.intermediate + q + 2 * kv + normed


@dataclass(frozen=True, slots=True)
class GeneratorMemory:
    """Bytes on one GPU: weights, and keys and values of one token."""

    weights: int
    kv_token: int

    def completions(self, kv_bytes: float, tokens: int) -> int:
        """Sequences of `tokens` whose keys and values fit into `kv_bytes`."""
        return max(0, int(kv_bytes // (self.kv_token * tokens)))


def generator_memory(model: ModelSizes, *, width: int, gpus: int = 1) -> GeneratorMemory:
    """One generator whose weights and cache have `width` bytes a number, spread over `gpus` (tensor parallelism)."""
    check_whole("gpus", gpus, least=1)
    return GeneratorMemory(width * model.parameters // gpus, width * model.kv_values // gpus)
