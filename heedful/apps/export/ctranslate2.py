"""Export to CTranslate2, an inference engine for Transformers on CPUs and GPUs.

Its own package writes the files; this module fills its specifications with a model's weights.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
import torch
from torch import Tensor

from heedful.errors import ModelError
from heedful.interop.hf_tokenizers import SETTINGS_FILE
from heedful.interop.tokenizer_export import refuse_records, write_tokenizers
from heedful.models.checkpoint import read_weights, write_directory
from heedful.models.model_directory import find_model_directory, load_tokenizers, read_facts
from heedful.models.model_spec import CausalLMSpec, TranslatorSpec
from heedful.models.stack_spec import BlockSpec, StackSpec
from heedful.nn.attention.masks import Mask
from heedful.nn.positions import SinusoidalPositions
from heedful.nn.spec import AttentionSpec, NormSpec
from heedful.text.tokenizer import TextTokenizer
from heedful.text.tokenizer_pair import TokenizerPair

_ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_tanh": "GELUTanh",
    "quick_gelu": "GELUSigmoid",
    "silu": "SWISH",
    # In CTranslate2 a gate is a separate flag (`ffn_glu`); the name is that of its activation.
    "swiglu": "SWISH",
    "geglu": "GELU",
    "geglu_tanh": "GELUTanh",
    "reglu": "RELU",
}
# Number of rows of the table of sinusoids, which our models compute for any position.
_POSITIONS = 2048

Weights = Mapping[str, Tensor]
Array = npt.NDArray[np.float32]


def export_ctranslate2(model: Path, out: Path, quantization: str) -> str:
    """Write a model of ours as a directory that `ctranslate2` loads.

    Args:
        model: model directory, or run directory (its best model is exported).
        out: directory to write, whose parent exists.
        quantization: storage type of the weights.

    Returns:
        CTranslate2's name of the kind of model.

    Raises:
        ModelError: when the package is not installed, or does not support the model.
        RunError: when the directory cannot be written.
    """
    directory = find_model_directory(model)
    facts = read_facts(directory)
    spec: Any = facts.spec
    if spec.kind != "translator" and spec.kind != "causal_lm":
        raise ModelError(
            f"A model of the kind {spec.kind!r} cannot be exported to CTranslate2",
            where=str(directory),
            remedy="Give a translator or a causal language model; encoders go to --format onnx "
            "or hf",
        )
    # Checked before the package is imported, since the check does not need it.
    if problems := unsupported(spec):
        raise ModelError(
            f"CTranslate2 cannot compute what this model does: {'; '.join(problems)}",
            where=str(directory),
            remedy="Train a model without these settings, or export it with --format hf",
        )
    pair = load_tokenizers(directory, spec)
    assert pair is not None
    refuse_records(pair)
    specs = _package()
    # Weights are passed in float32, which `optimize` quantises later; NumPy has no bfloat16.
    build = _Builder(specs, {name: t.float() for name, t in read_weights(directory).items()})
    if spec.kind == "translator":
        theirs = build.translator(spec, pair)
    else:
        theirs = build.causal_lm(spec, pair.target)
    # Missing tensors are reported here, instead of giving a wrong model later.
    theirs.validate()
    theirs.optimize(quantization=quantization)
    settings = facts.origin.get("files", {}).get(SETTINGS_FILE, {})

    def write(fresh: Path) -> None:
        theirs.save(str(fresh))
        write_tokenizers(fresh, pair, settings, continues=spec.kind == "causal_lm")

    write_directory(out, write)
    name: str = theirs.name
    return name


def _package() -> Any:
    try:
        return importlib.import_module("ctranslate2.specs")
    except ImportError:
        raise ModelError(
            "The ctranslate2 package is not installed, which lays its files out",
            where="--format ctranslate2",
            remedy="Install it with: pip install 'heedful[ctranslate2]'",
        ) from None


class _Builder:
    """Builder of CTranslate2's specifications from our tensors.

    Args:
        specs: module `ctranslate2.specs`.
        weights: float32 weights of the model by our names.
    """

    def __init__(self, specs: Any, weights: Weights) -> None:
        self._specs = specs
        self._weights = weights

    def translator(self, spec: TranslatorSpec, pair: TokenizerPair) -> Any:
        """Build the `TransformerSpec` of a translator."""
        encoder = self._specs.TransformerEncoderSpec(**self._options(spec, spec.encoder))
        decoder = self._specs.TransformerDecoderSpec(
            **self._options(spec, spec.decoder), with_encoder_attention=True
        )
        target = "target_embedding.weight"
        # A shared embedding table is stored once, under the name of the target's table.
        source = "source_embedding.weight" if self._has("source_embedding.weight") else target
        self._embed(encoder, encoder.embeddings[0], source, spec, "source_input")
        self._embed(decoder, decoder.embeddings, target, spec, "target_input")
        self._stack(encoder, spec.encoder, "encoder")
        self._stack(decoder, spec.decoder, "decoder")
        self._project(decoder, target)
        if spec.output_scale is not None:
            decoder.scale_outputs = spec.output_scale
        theirs = self._specs.TransformerSpec(encoder, decoder)
        names = _pieces(pair.target, spec.target_vocabulary)
        theirs.register_source_vocabulary(_pieces(pair.source, spec.source_vocabulary))
        theirs.register_target_vocabulary(names)
        _configure(theirs.config, names, pair.target, spec.decoder.block)
        theirs.config.decoder_start_token = names[pair.target.bos]
        # The exported tokenizer adds the special tokens of a source, as in CTranslate2's
        # converters.
        theirs.config.add_source_bos = theirs.config.add_source_eos = False
        return theirs

    def causal_lm(self, spec: CausalLMSpec, tokenizer: TextTokenizer) -> Any:
        """Build the `TransformerDecoderModelSpec` of a language model."""
        decoder = self._specs.TransformerDecoderSpec(
            **self._options(spec, spec.decoder),
            with_encoder_attention=False,
            alibi=_has_kind(spec.decoder.block.self_attention.position_bias, "alibi"),
        )
        self._embed(decoder, decoder.embeddings, "embedding.weight", spec, "input")
        self._stack(decoder, spec.decoder, "decoder")
        self._project(decoder, "embedding.weight")
        theirs = self._specs.TransformerDecoderModelSpec(decoder)
        names = _pieces(tokenizer, spec.vocabulary)
        theirs.register_vocabulary(names)
        _configure(theirs.config, names, tokenizer, spec.decoder.block)
        return theirs

    def _options(self, spec: TranslatorSpec | CausalLMSpec, stack: StackSpec) -> dict[str, Any]:
        """Return the arguments of a stack's specification."""
        block = stack.block
        attention = block.self_attention
        activation = block.feedforward.activation
        kv_heads = attention.num_kv_heads
        return {
            "num_layers": stack.num_layers,
            "num_heads": attention.num_heads,
            # In CTranslate2 None means ordinary attention; a number selects grouped-query
            # attention.
            "num_heads_kv": None if kv_heads == attention.num_heads else kv_heads,
            "head_dim": attention.head_width,
            "pre_norm": block.norm_placement == "pre",
            "no_final_norm": stack.final_norm is None,
            "rms_norm": block.norm.kind == "rms",
            "activation": getattr(self._specs.Activation, _ACTIVATIONS[activation]),
            "ffn_glu": block.feedforward.gate is not None,
            "layernorm_embedding": spec.embedding.norm is not None,
            "relative_position": _has_kind(attention.position_bias, "relative_keys"),
            "relative_attention_bias": _has_kind(stack.shared_position_bias, "t5"),
            **self._rotary(attention),
        }

    def _rotary(self, attention: AttentionSpec) -> dict[str, Any]:
        rotary = attention.rotary
        if rotary is None:
            return {}
        options: dict[str, Any] = {
            # 0 means that all channels of a head are rotated.
            "rotary_dim": rotary.width or 0,
            # Rotation pairs channel 2i with 2i + 1, or i with i + E/2 as in Hugging Face's LLaMA.
            "rotary_interleave": rotary.layout == "pairs",
            "rotary_base": rotary.base,
        }
        types = self._specs.RotaryScalingType
        if rotary.scaling == "linear":
            options |= {"rotary_scaling_type": types.Linear}
            options |= {"rotary_scaling_factor": rotary.factor}
        return options

    def _embed(
        self,
        stack: Any,
        table: Any,
        name: str,
        spec: TranslatorSpec | CausalLMSpec,
        place: str,
    ) -> None:
        """Fill in the embedding table, its scale, position encodings and norm."""
        table.weight = self._array(name)
        stack.scale_embeddings = bool(spec.embedding.scale)
        # The specification has no encodings if positions are rotary or biases.
        if hasattr(stack, "position_encodings"):
            stack.position_encodings.encodings = self._positions(spec, place)
        if spec.embedding.norm is not None:
            self._norm(stack.layernorm_embedding, f"{place}.norm")

    def _positions(self, spec: TranslatorSpec | CausalLMSpec, place: str) -> Array:
        positions = spec.embedding.positions
        if positions.kind == "learned":
            # In CTranslate2 positions begin at row 0.
            return self._array(f"{place}.positions.weight")[positions.unused_rows :]
        length = max(_POSITIONS, spec.max_length or 0)
        if positions.kind == "none":
            # The specification requires a table, and a table of zeros changes nothing.
            return np.zeros((length, spec.width), np.float32)
        sinusoids = SinusoidalPositions(spec.width, positions.layout)
        encoded: Tensor = sinusoids(torch.arange(length)[None])[0]
        return encoded.numpy()

    def _stack(self, theirs: Any, stack: StackSpec, side: str) -> None:
        for number, layer in enumerate(theirs.layer):
            self._block(layer, stack.block, f"{side}.blocks.{number}")
            shared = stack.shared_position_bias
            # In CTranslate2 each layer has a copy of the table that T5's layers share.
            if shared is not None and shared.kind == "t5":
                layer.self_attention.relative_attention_bias = self._array(
                    f"{side}.position_bias.weight"
                )
                layer.self_attention.relative_attention_max_distance = np.int32(shared.max_distance)
        if stack.final_norm is not None:
            self._norm(theirs.layer_norm, f"{side}.final_norm")

    def _block(self, theirs: Any, block: BlockSpec, ours: str) -> None:
        own = f"{ours}.self_attention"
        # CTranslate2 stores query, key and value as one matrix and computes them in one matmul.
        self._attention(theirs.self_attention, block.self_attention, own, fused=[3])
        if block.cross_attention is not None:
            memory = f"{ours}.cross_attention"
            # Key and value of the encoder's output are projected once per sentence, the query
            # at each step.
            self._attention(theirs.attention, block.cross_attention, memory, fused=[1, 2])
        self._norm(theirs.ffn.layer_norm, f"{ours}.feedforward_norm")
        parts = {"linear_0": "up", "linear_1": "down"}
        if block.feedforward.gate is not None:
            # The output of linear_0 is activated, and multiplied by that of linear_0_noact.
            parts = {"linear_0": "gate", "linear_0_noact": "up", "linear_1": "down"}
        for name, part in parts.items():
            self._linear(getattr(theirs.ffn, name), f"{ours}.feedforward.{part}")

    def _attention(self, theirs: Any, spec: AttentionSpec, ours: str, *, fused: list[int]) -> None:
        """Fill in an attention; `fused` is the number of projections (q, k, v) in each matrix."""
        self._norm(theirs.layer_norm, f"{ours}_norm")
        maps = [f"{ours}.{name}" for name in ("query", "key", "value")]
        for linear, count in zip(theirs.linear, fused, strict=False):
            self._linear(linear, *maps[:count])
            maps = maps[count:]
        self._linear(theirs.linear[-1], f"{ours}.output")
        if spec.scale is not None:
            theirs.queries_scale = spec.scale
        if _has_kind(spec.position_bias, "relative_keys"):
            keys = self._array(f"{ours}.position_bias.weight")
            theirs.relative_position_keys = keys
            # Shaw (2018) also has relative values, which CTranslate2 requires and our models lack.
            theirs.relative_position_values = np.zeros_like(keys)
        rotary = spec.rotary
        if rotary is not None and rotary.scaling == "linear":
            theirs.rotary_scaling_factor = np.float32(rotary.factor)

    def _project(self, decoder: Any, tied: str) -> None:
        own = "output_projection.weight"
        decoder.projection.weight = self._array(own if self._has(own) else tied)
        if self._has("output_bias"):
            decoder.projection.bias = self._array("output_bias")

    def _linear(self, theirs: Any, *ours: str) -> None:
        """Fill in a linear layer with several of our layers, concatenated by rows [out, in]."""
        theirs.weight = np.concatenate([self._array(f"{name}.weight") for name in ours])
        if self._has(f"{ours[0]}.bias"):
            theirs.bias = np.concatenate([self._array(f"{name}.bias") for name in ours])

    def _norm(self, theirs: Any, ours: str) -> None:
        theirs.gamma = self._array(f"{ours}.weight")
        if self._has(f"{ours}.bias"):
            theirs.beta = self._array(f"{ours}.bias")

    def _has(self, name: str) -> bool:
        return name in self._weights

    def _array(self, name: str) -> Array:
        return self._weights[name].numpy()


def _configure(config: Any, names: list[str], tokenizer: TextTokenizer, block: BlockSpec) -> None:
    config.bos_token = names[tokenizer.bos]
    config.eos_token = names[tokenizer.eos]
    config.unk_token = names[tokenizer.unk]
    config.layer_norm_epsilon = block.norm.epsilon


def _pieces(tokenizer: TextTokenizer, rows: int) -> list[str]:
    """Return the token of each row of an embedding table; unused rows get made-up names."""
    # Embedding tables are often padded, and CTranslate2 requires a name for each row.
    names = [f"<unused{row}>" for row in range(rows)]
    for piece, id in _ids(tokenizer).items():
        names[id] = piece
    return names


def _ids(tokenizer: TextTokenizer) -> Mapping[str, int]:
    # Marian's ids come from a file beside the SentencePiece model.
    own: Mapping[str, int] | None = getattr(tokenizer, "vocabulary", None)
    if own is not None:
        return own
    state = json.loads(tokenizer.to_json())["tokenizer"]
    return tokenizers.Tokenizer.from_str(json.dumps(state)).get_vocab(with_added_tokens=True)


def _has_kind(bias: Any, kind: str) -> bool:
    return bias is not None and bias.kind == kind


def unsupported(spec: TranslatorSpec | CausalLMSpec) -> list[str]:
    """Return the settings of a model that CTranslate2 does not support."""
    problems = [] if spec.embedding.num_segments is None else ["embedding.num_segments"]
    if spec.kind == "translator" and spec.output_scale not in (None, spec.width**-0.5):
        problems.append(f"output_scale = {spec.output_scale}")
    if spec.logits_softcap is not None:
        problems.append("logits_softcap")
    try:
        for side, stack in spec.stacks().items():
            problems += _in_stack(stack, side)
            problems += _in_positions(spec, stack, side)
        norms = [norm for stack in spec.stacks().values() for norm in _norms(stack)]
    # The error is raised for layers that differ, and for blocks without attention or feed-forward
    # network.
    except ModelError as error:
        return [*problems, error.what]
    if spec.embedding.norm is not None:
        norms.append(spec.embedding.norm)
    if any(norm.kind == "layer" and not norm.bias for norm in norms):
        problems.append("layer norms without bias")
    if any(norm.unit_offset for norm in norms):
        problems.append("norms with unit_offset")
    # CTranslate2's config has one `layer_norm_epsilon` for the whole model.
    epsilons = {norm.epsilon for norm in norms}
    if len(epsilons) > 1:
        values = ", ".join(map(str, sorted(epsilons)))
        problems.append(f"norms with different epsilons: {values}")
    return problems


def _norms(stack: StackSpec) -> Iterator[NormSpec]:
    yield stack.block.norm
    if stack.final_norm is not None:
        yield stack.final_norm


def _in_stack(stack: StackSpec, side: str) -> Iterator[str]:
    block = stack.block
    if not all(each.residual for each in block.sublayers):
        yield f"{side}: a sub-layer without a residual connection"
    if any(each.parallel for each in block.sublayers):
        yield f"{side}: sub-layers that read the block's input (parallel)"
    # In CTranslate2 all layers of a stack have the same number of heads.
    if stack.is_pruned:
        yield f"{side}.kept_heads (layers with unequal heads, from pruning)"
    if block.norm_placement == "post" and stack.final_norm is not None:
        yield f"{side}.final_norm after post-norm blocks"
    if len({norm.kind for norm in _norms(stack)}) > 1:
        yield f"{side}.final_norm of another kind than the blocks' norm"
    if block.feedforward.experts is not None:
        yield f"{side}.block.feedforward.experts (mixture of experts)"
    own = block.self_attention
    yield from _in_attention(own, f"{side}.block.self_attention")
    if not _has_usual_mask(own.mask, causal=side == "decoder"):
        yield f"{side}.block.self_attention.mask = {own.mask.kind}"
    cross = block.cross_attention
    if cross is not None:
        place = f"{side}.block.cross_attention"
        yield from _in_attention(cross, place)
        # CTranslate2 applies the options of self-attention to cross-attention too.
        for name in ("num_heads", "num_kv_heads", "head_width"):
            if getattr(cross, name) != getattr(own, name):
                yield f"{place}.{name} that differs from that of self_attention"
        if cross.mask.kind != "everything":
            yield f"{place}.mask = {cross.mask.kind}"
        if cross.rotary is not None or cross.position_bias is not None:
            yield f"{place} with positions"


def _in_positions(
    spec: TranslatorSpec | CausalLMSpec, stack: StackSpec, side: str
) -> Iterator[str]:
    """Yield unsupported combinations of positions: CTranslate2 supports one kind at a time."""
    attention = stack.block.self_attention
    bias = attention.position_bias
    ways = {
        "embedding.positions": spec.embedding.positions.kind != "none",
        "rotary": attention.rotary is not None,
        "position_bias": bias is not None,
        "shared_position_bias": stack.shared_position_bias is not None,
    }
    if spec.embedding.positions.kind == "axes":
        yield "embedding.positions.kind = axes"
    used = [name for name, is_used in ways.items() if is_used]
    if len(used) > 1:
        yield f"{side}: {' with '.join(used)}"
    shared = stack.shared_position_bias
    if shared is not None and shared.kind != "t5":
        yield f"{side}.shared_position_bias = {shared.kind}"
    # In CTranslate2 only decoder-only models have ALiBi.
    if bias is not None and bias.kind == "alibi" and spec.kind == "translator":
        yield f"{side}.block.self_attention.position_bias = alibi in a translator"
    if bias is not None and bias.kind not in ("alibi", "relative_keys"):
        kind = "t5 that layers do not share" if bias.kind == "t5" else bias.kind
        yield f"{side}.block.self_attention.position_bias = {kind}"


def _in_attention(attention: AttentionSpec, place: str) -> Iterator[str]:
    if attention.query_key_norm is not None:
        yield f"{place}.query_key_norm"
    if attention.softcap is not None:
        yield f"{place}.softcap"
    rotary = attention.rotary
    if rotary is None:
        return
    if rotary.scaling not in ("none", "linear"):
        yield f"{place}.rotary.scaling = {rotary.scaling}"
    if rotary.temperature not in (None, 1.0):
        yield f"{place}.rotary.temperature"


def _has_usual_mask(mask: Mask, *, causal: bool) -> bool:
    """Return True if a mask is causal in a decoder, or full in an encoder."""
    # Sequences are packed in training only, so segments do not matter to an export.
    rules = [rule.kind for rule in mask.conjuncts if rule.kind != "segment"]
    return rules == ["causal" if causal else "everything"]
