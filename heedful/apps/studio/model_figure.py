"""A model as the boxes of the paper's figure 1, read from its spec (Vaswani 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from heedful.apps.studio.page import ModelRequest, call
from heedful.apps.studio.workspace import Workspace
from heedful.errors import ModelError
from heedful.models.block import Block
from heedful.models.cost import blocks_of, built, count_parameters, numel, parameters_by_module
from heedful.models.model_spec import ModelSpec
from heedful.models.stack_spec import BlockSpec, StackSpec, SubLayerSpec, sees_no_later
from heedful.nn.spec import NormSpec

KINDS = ("translator", "causal_lm", "encoder", "vision")
"""Kinds of models with one input for each stack."""

Box = dict[str, Any]
"""A box of the figure: key, kind, title, note, parameters, facts and, of a part, its sub-layer."""


@call(ModelRequest)
def figure(request: ModelRequest, workspace: Workspace) -> dict[str, Any]:
    """Return the boxes of a model, stack by stack, each from its input to its output.

    Raises:
        ModelError: when the model has no stack of blocks.
    """
    spec = workspace.place(request.model).load().model.spec
    if spec.kind not in KINDS:
        raise ModelError(
            f"A model of the kind {spec.kind!r} is not one that the figure draws",
            where=request.model,
            remedy=f"Choose one of these kinds: {', '.join(KINDS)}",
        )
    return figure_of(spec)


def figure_of(spec: ModelSpec) -> dict[str, Any]:
    """Return the boxes of a model, whose parameters add up to the model's.

    Args:
        spec: a model of one of `KINDS`.
    """
    names = list(spec.stacks())
    return {
        "kind": spec.kind,
        "width": spec.width,
        "parameters": count_parameters(spec),
        "stacks": [
            {
                "name": name,
                "layers": stack.num_layers,
                "input": list(_input_boxes(spec, name)),
                "blocks": _blocks(spec, name, stack),
                "output": [*_final_norm(spec, name), *(_output_boxes(spec) if last else ())],
            }
            for name, stack, last in ((n, spec.stacks()[n], n == names[-1]) for n in names)
        ],
    }


def _box(key: str, kind: str, title: str, note: str = "", parameters: int = 0, **more: Any) -> Box:
    facts = [[name, value] for name, value in more.pop("facts", {}).items() if value is not None]
    return {
        "key": key,
        "kind": kind,
        "title": title,
        "note": note,
        "parameters": parameters,
        "facts": facts,
        **more,
    }


def _input_boxes(spec: ModelSpec, name: str) -> Iterator[Box]:
    """Yield what turns tokens or patches into vectors."""
    model: Any = built(spec)
    if hasattr(model, "patches") and not hasattr(model, "embedding"):
        size, channels = spec.patch_size, spec.channels
        facts = {"shape": f"{size} × {size} × {channels} → {spec.width}"}
        note = f"{size} × {size} pixels each"
        tokens = [model.class_token, model.distillation_token]
        count = numel(model.patches) + sum(each.numel() for each in tokens if each is not None)
        yield _box("embedding", "embedding", "Patches", note, count, facts=facts)
        positions, kind = model.positions, "learned"
    else:
        table, vocabulary = _table(model, spec, name)
        own = model.input_modules()[name]
        written = spec.reads == "pairs" and name == "decoder"
        shared = written and table is model.source_embedding
        note = "the encoder’s table" if shared else f"{vocabulary:,} pieces"
        # Kinds of segment and the map of a narrow table belong to what a token becomes.
        count = numel(None if shared else table, own.segments, own.projection)
        facts = {"shape": f"{vocabulary:,} × {spec.width}", "scale": _scale(spec)}
        title = "Output Embedding" if written else "Input Embedding"
        yield _box("embedding", "embedding", title, note, count, facts=facts)
        positions, kind = own.positions, spec.embedding.positions.kind
        if own.norm is not None:
            yield _norm("embedding.norm", spec.embedding.norm, numel(own.norm))
    if positions is not None:
        yield _box("positions", "positions", "Positional Encoding", kind, numel(positions))
    bias = model.stacks()[name].position_bias
    if bias is not None:
        note = "added to the scores of all layers"
        yield _box("bias", "positions", "Position Bias", note, numel(bias))


def _table(model: Any, spec: ModelSpec, name: str) -> tuple[Any, int]:
    """Return the table of the tokens that a stack reads, and their number."""
    if spec.reads == "pairs":
        side = "source" if name == "encoder" else "target"
        return getattr(model, f"{side}_embedding"), getattr(spec, f"{side}_vocabulary")
    return model.embedding, spec.vocabulary


def _scale(spec: ModelSpec) -> str | None:
    return f"times √{spec.embedding.width or spec.width}" if spec.embedding.scale else None


def _blocks(spec: ModelSpec, name: str, stack: StackSpec) -> list[list[Box]]:
    """Return the boxes of each layer; layers that repeat a block of the pattern have equal ones."""
    pattern = [
        list(_block_boxes(block, own, spec.width))
        for (block, _), own in zip(blocks_of(spec, name), stack.pattern, strict=True)
    ]
    return [pattern[layer % len(pattern)] for layer in range(stack.num_layers)]


def _block_boxes(block: Block, spec: BlockSpec, width: int) -> Iterator[Box]:
    for module, own in zip(block.sublayers, spec.sublayers, strict=True):
        key, name = module.address, own.name
        norms = numel(getattr(block, f"{name}_norm", None))
        place = {"sublayer": key}
        if own.norm_placement in ("before", "both"):
            yield _norm(f"{key}.norm", own.norm, norms) | place
        yield _part(own, key, numel(getattr(block, name)), width) | place
        if own.norm_placement in ("both", "output"):
            output = numel(getattr(block, f"{name}_output_norm", None))
            yield _norm(f"{key}.output_norm", own.norm, output) | place
        after = own.norm_placement == "after"
        if own.residual:
            title = "Add & Norm" if after else "Add"
            note = _NORMS[own.norm.kind] if after else ""
            # A part that reads the block's input adds to the stream beside the others.
            facts = {"reads": "the input of the block" if own.parallel else None}
            own_norm = norms if after else 0
            yield _box(f"{key}.sum", "sum", title, note, own_norm, facts=facts) | place
        elif after:
            yield _norm(f"{key}.norm", own.norm, norms) | place


def _part(own: SubLayerSpec, key: str, parameters: int, width: int) -> Box:
    part: Any = own.part
    if part.kind == "attention":
        heads = part.num_heads
        head = part.head_width or width // heads
        shared = part.num_kv_heads or heads
        masked = not part.reads_memory and sees_no_later(part.mask)
        title = f"{'Masked ' if masked else ''}{'Multi-Head ' if heads > 1 else ''}Attention"
        facts = {
            "queries": f"{heads} × tokens × {head}",
            "keys and values": f"{shared} × tokens × {head}",
            "a query sees": part.mask.describe(),
            "positions": "rotary" if part.rotary is not None else None,
            "reads": "the encoder’s output" if part.reads_memory else None,
        }
        note = f"{heads} {'head' if heads == 1 else 'heads'} of {head}"
        kind = "cross" if part.reads_memory else "attention"
        return _box(key, kind, title, note, parameters, facts=facts, heads=heads)
    if part.kind == "feedforward":
        experts = part.experts
        facts = {
            "shape": f"{width} → {part.width:,} → {width}",
            "activation": part.activation,
            "experts": experts and f"{experts.per_token} of {experts.num_experts} for each token",
        }
        note = f"{width} → {part.width:,} → {width}"
        title = "Feed Forward" if experts is None else "Mixture of Experts"
        return _box(key, "network", title, note, parameters, facts=facts)
    kind = "network" if part.is_network else "cross" if part.reads_memory else "mixer"
    return _box(key, kind, part.label, "", parameters, facts={"": part.headline()})


_NORMS = {"layer": "layer norm", "rms": "root mean square"}


def _norm(key: str, norm: NormSpec, parameters: int) -> Box:
    return _box(key, "norm", "Norm", _NORMS[norm.kind], parameters)


def _final_norm(spec: ModelSpec, name: str) -> Iterator[Box]:
    norm = spec.stacks()[name].final_norm
    if norm is not None:
        yield _norm("final", norm, numel(built(spec).stacks()[name].final_norm))


def _output_boxes(spec: ModelSpec) -> Iterator[Box]:
    """Yield what turns the last vectors into probabilities: a projection, or heads."""
    if spec.generates:
        vocabulary = spec.target_vocabulary if spec.reads == "pairs" else spec.vocabulary
        parameters, note = _projection(spec, vocabulary)
        facts = {"shape": f"{spec.width} × {vocabulary:,}"}
        yield _box("linear", "linear", "Linear", note, parameters, facts=facts)
        yield _box("softmax", "softmax", "Softmax", f"{vocabulary:,} shares")
        return
    counts = parameters_by_module(spec)
    ends = ("pooler", "heads", "classifier", "distillation_classifier")
    for name in ends:
        # Heads of an encoder stand in one dictionary, by their kinds.
        own = {key: n for key, n in counts.items() if key.partition(".")[0] == name}
        kinds = dict.fromkeys(
            ".".join(key.split(".")[: 2 if name == "heads" else 1]) for key in own
        )
        for key in kinds:
            total = sum(n for each, n in own.items() if f"{each}.".startswith(f"{key}."))
            title = key.rpartition(".")[2].replace("_", " ").capitalize().replace(" lm", " LM head")
            yield _box(key, "linear", title, _classes(spec, key), total)
            if name in ("heads", "classifier"):
                yield _box(f"{key}.softmax", "softmax", "Softmax")


def _classes(spec: ModelSpec, key: str) -> str:
    names = getattr(spec, "class_names", ())
    return f"{len(names)} labels" if key == "classifier" else ""


def _projection(spec: ModelSpec, vocabulary: int) -> tuple[int, str]:
    """Return the parameters of the output projection, and a note where its table is shared."""
    model: Any = built(spec)
    table = model.output_projection
    shared = table is getattr(model, "target_embedding", getattr(model, "embedding", None))
    bias = vocabulary if spec.output_bias else 0
    return (bias, "the embedding’s table") if shared else (numel(table) + bias, "")
