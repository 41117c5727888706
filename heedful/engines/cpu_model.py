"""The weights of an engine's copy of a model, for lowering and for the NumPy runtime."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from heedful.engines.numpy_translator import NumpyTranslator
from heedful.engines.packed_linear import NativeLinear
from heedful.kernels.structs import Linear
from heedful.models.translator import Translator
from heedful.nn.product import unwatched

_MODULES = {"query": "projection", "key": "memory_projection", "value": "memory_projection"}
"""The modules of fused maps, whose weights have names of their own in state dicts."""


class ModuleWeights:
    """Weights of a model whose linear layers are packed; see `WeightSource`.

    Args:
        model: an engine's copy.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def address(self, name: str, *shape: int) -> int:
        """See `WeightSource.address`."""
        weight = self._model.get_parameter(name)
        assert weight.dtype == torch.float32
        assert weight.is_contiguous()
        assert weight.shape == shape
        return weight.data_ptr()

    def packed(self, maps: Mapping[str, int], in_width: int, *, has_bias: bool) -> Linear:
        """See `WeightSource.packed`; a layer without heads has no weight, only a bias."""
        owner, _, part = next(iter(maps)).rpartition(".")
        layer = self._model.get_submodule(f"{owner}.{_MODULES.get(part, part)}")
        layer = getattr(layer, "layer", layer)
        if not in_width or not sum(maps.values()):
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
    """The same translator without PyTorch's operations.

    Args:
        model: one that `is_untouched`.

    Raises:
        Unsupported: when it needs them.
    """
    return NumpyTranslator(model.spec, ModuleWeights(model))


def is_untouched(model: Translator) -> bool:
    """Return whether kernels in C compute all of a model, and no module was replaced or hooked."""
    stacks, packed = (
        (model.encoder, model.decoder),
        getattr(model.output_projection, "packed", None),
    )
    if packed is None or not all(getattr(each, "is_whole", False) for each in stacks):
        return False
    return unwatched(model.source_input, model.target_input, packed)
