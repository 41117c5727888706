"""A model by kernels in C: its embedding, parts and weights by name, and its NumPy form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from heedful.engines.class_exchange import (
    EnginePart,
    Exchange,
    become,
    has_no_hooks,
    replace_module,
)
from heedful.engines.host_parts import HOST_KINDS, encoding_table
from heedful.engines.inference.cpu_block import norm_rows
from heedful.engines.inference.cpu_stack import CpuStack
from heedful.engines.inference.packed_linear import NativeLinear
from heedful.engines.inference.support import embedding_refusals, stack_refusals
from heedful.kernels.library import address, kernels
from heedful.kernels.structs import Linear
from heedful.models.translator import Translator
from heedful.nn.embeddings import InputEmbedding, RowProjection, TokenEmbedding

if TYPE_CHECKING:
    from heedful.engines.inference.numpy_translator import NumpyTranslator
    from heedful.models.build import AnyModel

_MODULES = {"query": "projection", "key": "memory_projection"}
"""Names of fused modules by their first map: state dicts name single maps, modules are fused."""


class CpuInputEmbedding(EnginePart, InputEmbedding):
    """Input embedding by kernels in C, or by the definition where positions have no table."""

    def forward(
        self,
        ids: Tensor,
        positions: Tensor,
        table: TokenEmbedding | RowProjection,
        segments: Tensor | None = None,
    ) -> Tensor:
        if self.by_definition:
            return super().forward(ids, positions, table, segments)
        x = encodings = None
        if self.positions is not None:
            encodings = encoding_table(self.positions, positions)
        # The kernel adds one table of encodings, not two.
        if self.segments is None and (self.positions is None or encodings is not None):
            x = embed(ids, positions, table.weight, self.scale, encodings)
        if x is None:
            x = self.embed(ids, positions, table, segments)
        return x if self.norm is None else norm_rows(x, self.norm)


def embed(
    ids: Tensor,
    positions: Tensor,
    table: Tensor,
    scale: float,
    encodings: tuple[Tensor, int] | None,
) -> Tensor | None:
    """Compute `scale * table[ids]` plus the encodings of positions in one pass.

    Args:
        ids: token ids [B, L] int64.
        positions: positions [B, L] int64; a position of −1 adds no encoding.
        table: embedding vectors [V, D].
        scale: factor of the vectors.
        encodings: encodings [P, D] and their row of position 0; or None.

    Returns:
        [B, L, D] float32; None where an id or a position lies past its table, or there are no
        kernels for such tensors.
    """
    rows, first = (None, 0) if encodings is None else encodings
    # A bfloat16 model has bfloat16 tables, which only PyTorch looks up.
    for each in (table, rows):
        if each is not None and (each.dtype != torch.float32 or not each.is_contiguous()):
            return None
    if kernels() is None or table.device.type != "cpu":
        return None
    ids, positions = ids.contiguous(), positions.contiguous()
    x = torch.empty((*ids.shape, table.shape[1]))
    done = kernels().heedful_embed(
        *(ids.data_ptr(), positions.data_ptr(), ids.numel()),
        *(table.data_ptr(), len(table), scale),
        *(address(rows), 0 if rows is None else len(rows), first),
        *(table.shape[1], x.data_ptr()),
    )
    # The kernel checks ids and positions as it reads them, and the definition raises the error.
    return x if done else None


def read_positions(engine: AnyModel) -> None:
    """Let the parts of an engine on a processor read the values of positions."""
    Exchange(engine, HOST_KINDS).make()


def use_kernels(engine: AnyModel, *, native: bool) -> None:
    """Let kernels in C compute the embeddings and stacks that they support.

    Args:
        engine: engine with packed layers.
        native: flag that the layers are packed for kernels in C.
    """
    spec = engine.spec
    if spec.reads == "images_and_texts":
        # Each tower is a whole model, with weights under names of its own.
        for tower in spec.stacks():
            use_kernels(getattr(engine, tower), native=native)
        return
    weights = ModuleWeights(engine) if native else None
    embedding = getattr(spec, "embedding", None)
    if embedding is not None and not embedding_refusals(embedding, "embedding"):
        inputs = engine.input_modules().values()
        # Those of patches and sounds look up no table.
        for module in (each for each in inputs if hasattr(each, "embed")):
            replace_module(engine, module, become(module, CpuInputEmbedding))
    for name, stack in spec.stacks().items():
        if not stack_refusals(stack, name):
            module = CpuStack.of(getattr(engine, name), stack, spec.width, weights)
            setattr(engine, name, module)


class ModuleWeights:
    """Weights of an engine's copy of a model, with packed linear layers; see `WeightSource`."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def address(self, name: str, *shape: int) -> int:
        weight = self._model.get_parameter(name)
        # C reads raw memory: another type or layout would give wrong numbers and no error.
        assert weight.dtype == torch.float32
        assert weight.is_contiguous()
        assert weight.shape == shape
        return weight.data_ptr()

    def packed(self, maps: Mapping[str, int], in_width: int, *, has_bias: bool) -> Linear:
        """See `WeightSource.packed`; a layer without heads has no weight, only a bias."""
        owner, _, part = next(iter(maps)).rpartition(".")
        layer = self._model.get_submodule(f"{owner}.{_MODULES.get(part, part)}")
        # `PackedMaps` holds the packed layer of several maps; a single map is that layer itself.
        layer = getattr(layer, "layer", layer)
        if not in_width or not sum(maps.values()):
            # Attention whose heads were all pruned has only the bias of its output map left.
            bias = layer.bias
            place = bias.data_ptr() if isinstance(bias, torch.Tensor) and bias.numel() else None
            return Linear(None, place, None, None, in_width, sum(maps.values()))
        struct = _struct(layer)
        assert (struct.out_width, struct.in_width) == (sum(maps.values()), in_width)
        return struct

    def projection(self, table: str, bias: str | None, rows: int, width: int) -> Linear:
        return _struct(self._model.get_submodule("output_projection.packed"))


def _struct(layer: nn.Module) -> Linear:
    assert isinstance(layer, NativeLinear)
    return layer.packed.struct


def share_weights(model: Translator) -> NumpyTranslator:
    """Make a translator without PyTorch that shares an engine's weights, or raise `Unsupported`."""
    from heedful.engines.inference.numpy_translator import NumpyTranslator  # for single sentences

    return NumpyTranslator(model.spec, ModuleWeights(model))


def is_untouched(model: Translator) -> bool:
    """Return whether kernels in C compute all of a model, and no module was replaced or hooked."""
    # Sharing takes a single sentence of `tiny` in 8 bits from 0.54 to 1.01 times CTranslate2's
    # speed, bit for bit, so a model that inspection has changed must be recognised.
    stacks = model.encoder, model.decoder
    packed = getattr(model.output_projection, "packed", None)
    if packed is None or not all(getattr(each, "is_whole", False) for each in stacks):
        return False
    return has_no_hooks(model.source_input, model.target_input, packed)
