"""A model that runs already, as one of arrays that shares its weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from heedful.decode.lean.arrays import Floats
from heedful.decode.lean.linear import LinearMap
from heedful.decode.lean.translator import LeanTranslator
from heedful.models.translator import Translator
from heedful.nn.native.linear import NativeLinear
from heedful.nn.product import unwatched
from heedful.nn.running_weights import Fused

_HELD_BY = {
    "query": "projection",
    "key": "memory_projection",
    "value": "memory_projection",
}
"""Where the maps are whose weights have names of their own in files."""


class RunningWeights:
    """Hands out the weights of a model, which are shared, as `Weights` does those of a file.

    Args:
        model: one that `runs_untouched`.
    """

    def __init__(self, model: Translator) -> None:
        self._model = model

    def take(self, name: str, *shape: int) -> Floats:
        """The weight of this name and shape."""
        weight = self._model.get_parameter(name).detach()
        assert weight.dtype == torch.float32 and weight.shape == shape
        found: Floats = weight.numpy()
        return found

    def linear(
        self, heights: Mapping[str, int], in_width: int, *, has_bias: bool, int8: bool
    ) -> LinearMap:
        """The map that stands for the maps of these names and output widths."""
        owner, _, part = next(iter(heights)).rpartition(".")
        layer = getattr(self._model.get_submodule(owner), _HELD_BY.get(part, part))
        layer = layer.layer if isinstance(layer, Fused) else layer
        made = _shared(layer)
        assert (made.described.out_width, made.described.in_width) == (
            sum(heights.values()),
            in_width,
        )
        return made

    def output(self, table: Floats, bias: Floats | None, *, int8: bool) -> LinearMap:
        """The map that scores every token, by its row of a table [V, D] and bias [V]."""
        return _shared(self._model.running_output)


def _shared(layer: object) -> LinearMap:
    assert isinstance(layer, NativeLinear)
    return LinearMap.sharing(layer.described, layer)


def sharing_weights(model: Translator) -> LeanTranslator:
    """The same translator without PyTorch's operations.

    Args:
        model: one that `runs_untouched`.

    Raises:
        Unserved: when it needs them.
    """
    output = model.running_output
    assert isinstance(output, NativeLinear)
    return LeanTranslator(model.spec, RunningWeights(model), int8=output.scale is not None)


def runs_untouched(model: Translator) -> bool:
    """Whether kernels in C compute all of a model, nothing is taken away, and nobody watches."""
    stacks = model.encoder, model.decoder
    if model.running_output is None or not all(each.runs_in_one for each in stacks):
        return False
    return unwatched(model.source_input, model.target_input, *stacks, model.running_output)
