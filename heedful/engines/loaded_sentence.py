"""The NumPy runtime over the weights of a prepared translator, for a single sentence."""

from __future__ import annotations

from heedful.engines.module_weights import ModuleWeights
from heedful.engines.numpy_translator import NumpyTranslator
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
    stacks, packed = (
        (model.encoder, model.decoder),
        getattr(model.output_projection, "packed", None),
    )
    if packed is None or not all(getattr(each, "is_whole", False) for each in stacks):
        return False
    return unwatched(model.source_input, model.target_input, packed)
