"""LLaMA (Touvron 2023; 3.1: Grattafiori 2024), with what decoders of its structure share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from heedful.config import Activation
from heedful.interop.architecture import Architecture, Names, check_layers
from heedful.interop.config_fields import Fields
from heedful.interop.rewrites import scaled_embeddings
from heedful.interop.rotary_fields import read_rotary, write_scaling
from heedful.interop.tensor_table import (
    AFFINE,
    LINEAR,
    Table,
    output_projection,
    prefix_of,
    renamed,
    same,
)
from heedful.models.model_spec import CausalLMSpec
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.attention.masks import Causal, Mask
from heedful.nn.spec import (
    AttentionSpec,
    EmbeddingSpec,
    FeedForwardSpec,
    NormSpec,
    PositionSpec,
    RotarySpec,
)

T = TypeVar("T")

# A gated network names only the activation of its gate in config.json (Shazeer 2020).
GATED: Mapping[str, Activation] = {
    "silu": "swiglu",
    "swish": "swiglu",
    "gelu": "geglu",
    "gelu_pytorch_tanh": "geglu_tanh",
    "gelu_new": "geglu_tanh",
    "relu": "reglu",
}
GATED_NAMES: Mapping[Activation, str] = {
    "swiglu": "silu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_pytorch_tanh",
    "reglu": "relu",
}
# Defaults of transformers' LlamaConfig, those of the 7B model of 2023.
_SIZES = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
_NORMS = {
    "input_layernorm": "self_attention_norm",
    # This norm follows the attention's residual sum and precedes the feed-forward network:
    # pre-norm.
    "post_attention_layernorm": "feedforward_norm",
}
SLIDING, FULL = "sliding_attention", "full_attention"


def read_decoder(
    fields: Fields,
    sizes: Mapping[str, int],
    *,
    windows: Sequence[int | None] = (None,),
    feedforward_bias: bool = False,
    activation: str = "silu",
    rotary: RotarySpec | None = None,
    **attention: Any,
) -> CausalLMSpec:
    """Return the spec of a decoder with the structure of LLaMA.

    Args:
        fields: fields of config.json.
        sizes: defaults of sizes that config.json leaves out.
        windows: window of each layer of the pattern, in keys; None for causal attention without
            window.
        feedforward_bias: flag of biases in the feed-forward network.
        activation: name of theirs that a missing field means.
        rotary: rotation; that of all channels of a head, as config.json says, if None.
        **attention: further settings of `AttentionSpec`.

    Raises:
        ModelError: when a value is wrong or cannot be represented.
    """
    max_length = fields.integer("max_position_embeddings", sizes["max_position_embeddings"])
    if rotary is None:
        # Phi and StableLM rotate a part of each head, which these classes do not.
        for table in (fields, fields.table("rope_scaling"), fields.table("rope_parameters")):
            if table is not None:
                table.refuse_unless("partial_rotary_factor", [1, 1.0], 1.0)
        rotary = read_rotary(fields, max_length)
    norm = NormSpec(kind="rms", epsilon=fields.number("rms_norm_eps", 1e-6))
    kv_heads = sizes.get("num_key_value_heads")
    own_attention = AttentionSpec(
        num_heads=fields.integer("num_attention_heads", sizes["num_attention_heads"]),
        # Missing before LLaMA 2, where every query head has its own keys and values.
        num_kv_heads=fields.optional_integer("num_key_value_heads") or kv_heads,
        # Unset means D / H. Some models have another width, e.g. Mistral NeMo 128 of 5120 / 32 =
        # 160.
        head_width=fields.optional_integer("head_dim") or sizes.get("head_dim"),
        dropout=fields.number("attention_dropout", 0.0),
        # Half-split layout, channel i with i + E/2: transformers permuted Meta's interleaved
        # weights when it converted them.
        rotary=rotary,
        **attention,
    )
    feedforward = FeedForwardSpec(
        width=fields.integer("intermediate_size", sizes["intermediate_size"]),
        activation=fields.choice("hidden_act", GATED, activation),
        bias=feedforward_bias,
    )
    pattern = tuple(
        BlockSpec.of(
            norm_placement="pre",
            norm=norm,
            self_attention=own_attention.model_copy(update={"mask": window_mask(window)}),
            feedforward=feedforward,
        )
        for window in windows
    )
    return CausalLMSpec(
        width=fields.integer("hidden_size", sizes["hidden_size"]),
        vocabulary=fields.integer("vocab_size", sizes["vocab_size"]),
        # No scale, and no positions in the stream: they are in the rotation of queries and keys.
        embedding=EmbeddingSpec(scale=False, positions=PositionSpec(kind="none")),
        decoder=StackSpec(
            num_layers=fields.integer("num_hidden_layers", sizes["num_hidden_layers"]),
            pattern=pattern,
            final_norm=norm,
        ),
        tied=fields.flag("tie_word_embeddings", False),
        max_length=max_length,
    )


def window_mask(window: int | None) -> Mask:
    """Return the causal mask with a window in keys, or without one."""
    if window is None:
        return Causal()
    return Causal() & Mask.parse({"kind": "window", "size": window}, where="sliding_window")


def _read(fields: Fields, names: Names) -> CausalLMSpec:
    return read_decoder(
        fields,
        _SIZES,
        bias=fields.flag("attention_bias", False),
        feedforward_bias=fields.flag("mlp_bias", False),
    )


def write_decoder(spec: CausalLMSpec) -> dict[str, Any]:
    """Return the fields that `read_decoder` reads."""
    block = spec.decoder.pattern[0]
    attention = block.self_attention
    # SmolLM 3 has layers without it.
    rotaries = (each.rotary for each in spec.decoder.attentions())
    rotary = next((each for each in rotaries if each is not None), RotarySpec())
    scaling = write_scaling(rotary)
    # The field is required there, while a model of ours need not have a longest sequence.
    length = spec.max_length or max(2048, 2 * (rotary.original_length or 0))
    return {
        "vocab_size": spec.vocabulary,
        "hidden_size": spec.width,
        "intermediate_size": block.feedforward.width,
        "num_hidden_layers": spec.decoder.num_layers,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads or attention.num_heads,
        "head_dim": attention.width_of_heads(spec.width),
        "hidden_act": GATED_NAMES.get(block.feedforward.activation),
        "max_position_embeddings": length,
        "rms_norm_eps": block.norm.epsilon,
        "attention_dropout": attention.dropout,
        # Fields of versions before `rope_parameters`; later versions read them too.
        "rope_theta": rotary.base,
        **({"rope_scaling": scaling} if scaling else {}),
        "tie_word_embeddings": spec.tied,
    }


def read_windows(
    fields: Fields, sizes: Mapping[str, int], usual: Callable[[int], bool], names: Names
) -> list[int | None]:
    """Return the window of each layer, from `layer_types` and `sliding_window`.

    Args:
        fields: fields of config.json.
        sizes: defaults of sizes that config.json leaves out.
        usual: function that tells from the index of a layer whether it has a window, for files
            without `layer_types`.
        names: names of the tensors, to check the number of layers.

    Raises:
        ModelError: when `layer_types` does not have one known type per layer.
    """
    num_layers = fields.integer("num_hidden_layers", sizes["num_hidden_layers"])
    # Checked before a tuple of that length is built: the number of layers is not trusted.
    check_layers(num_layers, names, fields.where)
    types = fields.texts("layer_types")
    if not types:
        types = tuple(SLIDING if usual(number) else FULL for number in range(num_layers))
    if len(types) != num_layers or not {SLIDING, FULL}.issuperset(types):
        raise fields.wrong("layer_types", f"{SLIDING} or {FULL} of each layer is needed")
    fields.ignore("sliding_window")
    window = fields.integer("sliding_window", sizes["sliding_window"]) if SLIDING in types else 0
    windows = [window if each == SLIDING else None for each in types]
    return shortest_period(windows)


def shortest_period(layers: list[T]) -> list[T]:
    """Return the shortest beginning that repeats: [4096, None] for the 26 layers of Gemma 2."""
    for period in range(1, len(layers)):
        if all(layers[i] == layers[i % period] for i in range(len(layers))):
            return layers[:period]
    return layers


def write_windows(spec: CausalLMSpec) -> dict[str, Any]:
    """Return the fields that `read_windows` reads."""
    windows = [window_of(block) for block in spec.decoder.blocks]
    size = next((window for window in windows if window is not None), None)
    types = [FULL if window is None else SLIDING for window in windows]
    return {"sliding_window": size, "layer_types": types}


def window_of(block: BlockSpec) -> int | None:
    """Return the window of a block in keys; None for causal attention without window."""
    parts = block.self_attention.mask.conjuncts
    return next((part.span for part in parts if part.kind == "window"), None)


def _write(spec: CausalLMSpec) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        **write_decoder(spec),
        "attention_bias": spec.decoder.pattern[0].self_attention.bias,
        "mlp_bias": spec.decoder.pattern[0].feedforward.bias,
    }


def decoder_table(spec: CausalLMSpec, names: Names, norms: Mapping[str, str] = _NORMS) -> Table:
    """Return the tensor table of a decoder with the structure of LLaMA.

    Args:
        spec: spec of the model, which decides about biases.
        names: names of their tensors, with or without the prefix "model.".
        norms: our names of a layer's norms by their names.
    """
    prefix = prefix_of(names, "model.")
    embedding = f"{prefix}embed_tokens.weight"
    block = spec.decoder.pattern[0]
    attention, feedforward = block.self_attention, block.feedforward
    # Qwen 2 has biases on queries, keys and values, but not on the output.
    output_bias = attention.bias if attention.output_bias is None else attention.output_bias
    maps = {"q_proj": "query", "k_proj": "key", "v_proj": "value"}
    rules = [
        same(embedding, "embedding.weight"),
        same(f"{prefix}norm.weight", "decoder.final_norm.weight"),
    ]
    for number in range(spec.decoder.num_layers):
        layer, own = f"{prefix}layers.{number}.", f"decoder.blocks.{number}."
        # RMS norms have no bias.
        rules += renamed(norms, theirs=layer, ours=own, parts=LINEAR)
        if attention.query_key_norm is not None:
            rules += renamed(
                {"q_norm": "query_norm", "k_norm": "key_norm"},
                theirs=f"{layer}self_attn.",
                ours=f"{own}self_attention.",
                parts=LINEAR,
            )
        for modules, theirs, ours, bias in (
            (maps, "self_attn.", "self_attention.", attention.bias),
            ({"o_proj": "output"}, "self_attn.", "self_attention.", output_bias),
            (
                {f"{name}_proj": name for name in ("gate", "up", "down")},
                "mlp.",
                "feedforward.",
                feedforward.bias,
            ),
        ):
            parts = AFFINE if bias else LINEAR
            rules += renamed(modules, theirs=layer + theirs, ours=own + ours, parts=parts)
    head, copies = output_projection("lm_head.weight", embedding if spec.tied else None)
    # Frequencies of the rotation, a buffer that older versions saved.
    ignored = (r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",)
    return Table((*rules, *head), tuple(copies), ignored)


def decoder_architecture(
    model_type: str,
    read: Callable[[Fields, Names], CausalLMSpec],
    write: Callable[[CausalLMSpec], dict[str, Any]],
    *classes: str,
    tensors: Callable[[CausalLMSpec, Names], Table] = decoder_table,
    inert: tuple[str, ...] = (),
) -> Architecture[CausalLMSpec]:
    """Return the architecture of a decoder with the structure of LLaMA.

    Args:
        model_type: name of the architecture in config.json.
        read: function from config.json to a spec.
        write: function from a spec to the fields of config.json.
        classes: classes of transformers.
        tensors: function from a spec to the table of tensors, by LLaMA's names if left out.
        inert: settings without effect on its outputs.
    """
    return Architecture(
        model_type=model_type,
        kind="causal_lm",
        read=read,
        write=write,
        tensors=tensors,
        rewrites=(scaled_embeddings,),
        classes=classes,
        # An older name of the longest text, a mark of the writer, a note about training.
        inert=("max_sequence_length", "is_llama_config", "finetuned", *inert),
    )


ARCHITECTURE = decoder_architecture(
    "llama", _read, _write, "LlamaForCausalLM", "LLaMAForCausalLM", "LlamaModel"
)
