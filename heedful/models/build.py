"""From a spec to its model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heedful.models.family import CausalLMSpec, EncoderSpec, ModelSpec
from heedful.models.spec import TranslatorSpec

if TYPE_CHECKING:
    from heedful.models.causal_lm import CausalLM
    from heedful.models.encoder import EncoderModel
    from heedful.models.translator import Translator
    from heedful.models.vision import VisionModel

    AnyModel = Translator | CausalLM | EncoderModel | VisionModel


def build_model(spec: ModelSpec) -> AnyModel:
    """A model with new weights.

    Args:
        spec: the complete description; its class says which model it is of.
    """
    if isinstance(spec, TranslatorSpec):
        from heedful.models.translator import Translator

        return Translator(spec)
    if isinstance(spec, CausalLMSpec):
        from heedful.models.causal_lm import CausalLM

        return CausalLM(spec)
    if isinstance(spec, EncoderSpec):
        from heedful.models.encoder import EncoderModel

        return EncoderModel(spec)
    from heedful.models.vision import VisionModel

    return VisionModel(spec)


def count_built(spec: ModelSpec) -> int:
    """Learned numbers of a model, each shared one once; counted without memory for them."""
    return sum(parameter_counts(spec).values())


def parameter_counts(spec: ModelSpec) -> dict[str, int]:
    """Learned numbers of a model by module, in the order of the modules.

    The layers of a stack count together; a tensor that several modules share counts for the first.
    """
    import torch

    with torch.device("meta"):
        model = build_model(spec)
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        parts = [part for part in name.split(".")[:-1] if not part.isdigit()]
        module = ".".join(parts[:3])
        counts[module] = counts.get(module, 0) + parameter.numel()
    return counts
