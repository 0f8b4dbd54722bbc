import pytest

from ostinato.cli.check_model import KNOWN
from ostinato.errors import ConfigError
from ostinato.theory.sizes import ModelSizes, generator_memory, trainer_memory

TINY = ModelSizes(64, 160, 2, 4, 2, 16, 100, tied=True, qk_norm=True)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Qwen/Qwen3-0.6B", 596_049_920),
        ("Qwen/Qwen2.5-7B", 7_615_616_512),
        ("meta-llama/Llama-3.2-3B-Instruct", 3_212_749_824),
        ("Qwen/Qwen3-8B", 8_190_735_360),
        ("smollm2", 134_515_008),
    ],
)
def test_parameters_are_those_of_the_released_models(name: str, parameters: int) -> None:
    assert KNOWN[name].parameters == parameters


@pytest.mark.parametrize("family", ["Qwen3", "Qwen2", "Llama"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_those_that_transformers_builds(family: str, tied: bool) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = ModelSizes(64, 160, 3, 4, 2, 24, 100, tied, qk_norm=family == "Qwen3", qkv_bias=family == "Qwen2")
    model = built(transformers, family, sizes)
    assert sizes.parameters == sum(p.numel() for p in model.parameters())


def test_adapters_are_those_that_peft_adds() -> None:
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    model = peft.get_peft_model(built(transformers, "Qwen3", TINY), peft.LoraConfig(r=3, target_modules="all-linear"))
    assert TINY.adapter_parameters(3) == sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("family", ["Qwen3", "Llama"])
def test_activations_are_near_what_torch_keeps_for_the_backward_pass(family: str, bf16: bool) -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    def kept_bytes(layers: int, tokens: int) -> int:
        sizes = ModelSizes(64, 160, layers, 4, 2, 16, 100, tied=True, qk_norm=family == "Qwen3")
        model = built(transformers, family, sizes)
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        kept = {}

        def keep(tensor):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                kept[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t), torch.autocast("cpu", enabled=bf16):
            model.model(input_ids=torch.ones(1, tokens, dtype=torch.long), use_cache=False)
        return sum(kept.values())

    # Differences: of layers, so that embedding and last norm, and of lengths, so that weights in bf16 drop out.
    measured = sum(s * kept_bytes(layers, n) for s, layers, n in ((1, 3, 256), (-1, 3, 128), (-1, 1, 256), (1, 1, 128)))
    sizes = ModelSizes(64, 160, 2, 4, 2, 16, 100, tied=True, qk_norm=family == "Qwen3")
    estimate = trainer_memory(sizes, tokens=128, bf16=bf16, checkpointing=False).activations
    assert estimate == pytest.approx(measured, rel=0.12)


def test_a_trainer_holds_sixteen_bytes_a_parameter_and_a_share_when_spread() -> None:
    p = TINY.parameters
    alone = trainer_memory(TINY, tokens=100, bf16=False, checkpointing=False, replicas=4)
    assert (alone.weights, alone.gradients, alone.optimizer, alone.whole_layers) == (4 * p, 4 * p, 8 * p, 0)
    spread = trainer_memory(TINY, tokens=100, bf16=False, checkpointing=False, replicas=4, spread=True)
    assert (spread.weights, spread.gradients, spread.optimizer) == (p, p, 2 * p)
    # A block, the next one and a gradient; the embedding and its gradient.
    assert spread.whole_layers == 4 * (3 * TINY.block_parameters + 2 * 6400)
    adapted = trainer_memory(TINY, tokens=100, bf16=False, checkpointing=False, adapter_rank=3)
    assert adapted.gradients == 4 * TINY.adapter_parameters(3)
    assert adapted.weights == 4 * (p + TINY.adapter_parameters(3))
    assert adapted.whole_layers == 0
    # Under bf16 a frozen base is held in bf16 but for the embedding, whose rounded copy is the output layer.
    frozen = trainer_memory(TINY, tokens=100, bf16=True, checkpointing=False, adapter_rank=3, reference=True)
    assert frozen.weights == 4 * (6400 + 64 + TINY.adapter_parameters(3)) + 2 * 2 * TINY.block_parameters
    assert frozen.whole_layers == 2 * 6400
    referred = trainer_memory(TINY, tokens=100, bf16=True, checkpointing=False, reference=True)
    assert (referred.weights, referred.whole_layers) == (8 * p, 2 * (p - 64))
    # Of two blocks the inputs, and the inside of one: 7*64 + 4*160 + 64 + 2*32 + 2*96 numbers.
    again = trainer_memory(TINY, tokens=100, bf16=False, checkpointing=True)
    assert again.activations == 100 * 4 * (2 * 64 + 1408)
    assert alone.activations == 100 * 4 * 2 * 1408
    assert alone.total == 16 * p + alone.activations


def test_a_generator_holds_weights_and_keys_and_values() -> None:
    memory = generator_memory(TINY, width=2)
    assert memory.weights == 2 * TINY.parameters
    assert memory.kv_token == 2 * 2 * 2 * 2 * 16
    assert memory.completions(10 * 1000 * 256 + 100, 1000) == 10
    assert memory.completions(-5, 1000) == 0
    # Qwen2.5-7B keeps 56 KiB a token in bf16: 28 layers, 4 heads of 128, keys and values.
    assert generator_memory(KNOWN["Qwen/Qwen2.5-7B"], width=2).kv_token == 57344


@pytest.mark.parametrize(("name", "value"), [("layers", 0), ("hidden", -1), ("vocabulary", 1.5)])
def test_impossible_sizes_are_refused(name: str, value) -> None:
    given = dict.fromkeys(["hidden", "intermediate", "layers", "heads", "kv_heads", "head_size", "vocabulary"], 2)
    with pytest.raises(ConfigError, match=name):
        ModelSizes(**given | {name: value}, tied=True)
    with pytest.raises(ConfigError, match="tokens must be at least 1"):
        trainer_memory(TINY, tokens=0, bf16=False, checkpointing=False)


def built(transformers, family: str, sizes: ModelSizes):
    config = getattr(transformers, f"{family}Config")(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_size,
        tie_word_embeddings=sizes.tied,
    )
    return getattr(transformers, f"{family}ForCausalLM")(config)
