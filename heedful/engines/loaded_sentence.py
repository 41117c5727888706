"""The NumPy runtime over the weights of a prepared translator, for a single sentence."""

from __future__ import annotations

from heedful.engines.cpu_stack import CpuStack
from heedful.engines.module_weights import ModuleWeights
from heedful.engines.numpy_translator import NumpyTranslator
from heedful.engines.packed_linear import PackedProjection
from heedful.models.translator import Translator
from heedful.nn.product import unwatched


def share_weights(model: Translator) -> NumpyTranslator:
    """The same translator without PyTorch's operations.

    Args:
        model: one that `is_untouched`.

    Raises:
        Unsupported: when it needs them.
    """
    return NumpyTranslator(model.spec, ModuleWeights(model))


def is_untouched(model: Translator) -> bool:
    """Whether kernels in C compute all of a model, nothing was replaced, and nobody hooked in."""
    stacks, output = (model.encoder, model.decoder), model.output_projection
    if not isinstance(output, PackedProjection):
        return False
    if not all(isinstance(each, CpuStack) and each.is_whole for each in stacks):
        return False
    return unwatched(model.source_input, model.target_input, output.packed)
