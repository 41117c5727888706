"""A model by kernels in C: exchange of its parts, its weights by name, its NumPy twin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn

from heedful.engines.class_exchange import Exchange, become, has_no_hooks, replace_module
from heedful.engines.host_parts import HOST_KINDS
from heedful.engines.inference.cpu_stack import CpuInputEmbedding, CpuStack
from heedful.engines.inference.packed_linear import NativeLinear
from heedful.engines.inference.support import embedding_refusals, stack_refusals
from heedful.kernels.structs import Linear
from heedful.models.translator import Translator
from heedful.nn.spec import EmbeddingSpec

if TYPE_CHECKING:
    from heedful.engines.inference.numpy_translator import NumpyTranslator
    from heedful.models.build import AnyModel

_MODULES = {"query": "projection", "key": "memory_projection"}
"""Names of fused modules by their first map: state dicts name single maps, modules are fused."""


def read_positions(engine: AnyModel) -> None:
    """Let the parts of an engine on a processor read positions, whose values it has at hand."""
    Exchange(engine, HOST_KINDS).make()


def use_kernels(engine: AnyModel, *, native: bool) -> None:
    """Let kernels in C compute the embeddings and stacks that they support.

    Args:
        engine: engine with packed layers.
        native: flag that the layers are packed for kernels in C.
    """
    weights, spec = ModuleWeights(engine) if native else None, engine.spec
    embedding: EmbeddingSpec | None = getattr(spec, "embedding", None)
    if embedding is not None and not embedding_refusals(embedding, "embedding"):
        for module in engine.input_modules().values():
            replace_module(engine, module, become(module, CpuInputEmbedding))
    for name, stack in spec.stacks().items():
        if not stack_refusals(stack, name):
            module = CpuStack.of(getattr(engine, name), stack, spec.width, weights)
            setattr(engine, name, module)


class ModuleWeights:
    """Weights of a model whose linear layers are packed; see `WeightSource`.

    Args:
        model: copy of a model that is an engine.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def address(self, name: str, *shape: int) -> int:
        """See `WeightSource.address`."""
        weight = self._model.get_parameter(name)
        # C reads raw memory: another type or layout would be wrong numbers, not an error.
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
        """See `WeightSource.projection`."""
        return _struct(self._model.get_submodule("output_projection.packed"))


def _struct(layer: nn.Module) -> Linear:
    assert isinstance(layer, NativeLinear)
    return layer.struct


def share_weights(model: Translator) -> NumpyTranslator:
    """Make a translator without PyTorch's operations that shares a model's weights.

    Args:
        model: engine for which `is_untouched` holds.

    Raises:
        Unsupported: when it needs them.
    """
    from heedful.engines.inference.numpy_translator import NumpyTranslator  # of one sentence

    return NumpyTranslator(model.spec, ModuleWeights(model))


def is_untouched(model: Translator) -> bool:
    """Return whether kernels in C compute all of a model, and no module was replaced or hooked."""
    # Sharing takes a single sentence of `tiny` in 8 bits from 0.54 to 1.01 times CTranslate2's
    # speed, with the same bits, so a model that inspection has changed must be told from others.
    stacks = model.encoder, model.decoder
    packed = getattr(model.output_projection, "packed", None)
    if packed is None or not all(getattr(each, "is_whole", False) for each in stacks):
        return False
    return has_no_hooks(model.source_input, model.target_input, packed)
