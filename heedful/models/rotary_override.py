"""Rotary positions of a trained model, stretched to longer texts without further training.

Linear scaling divides positions (Chen 2023), NTK takes a larger base. YaRN divides low frequencies
only and changes the temperature of attention (Peng 2023). Weights stay the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from heedful.errors import ConfigError, ModelError
from heedful.models.build import build_around, canonical_weights
from heedful.models.shape import RotaryScaling as RotaryScaling
from heedful.models.shape import TranslatorShape
from heedful.models.spec_overrides import with_overrides

if TYPE_CHECKING:
    from heedful.models.build import AnyModel
    from heedful.models.causal_lm import CausalLM
    from heedful.models.checkpoint import ReadModel
    from heedful.text.tokenizer_pair import TokenizerPair


def stretch_rotary(
    model: AnyModel, scaling: RotaryScaling, factor: float, original_length: int | None = None
) -> CausalLM:
    """Return a language model with the same weights and stretched rotary positions.

    Args:
        model: causal language model; its weights are copied.
        scaling: method, as linear, ntk, yarn or by_wavelength.
        factor: ratio of new to original text length.
        original_length: tokens of texts before stretching; the model's `max_length` if None.

    Raises:
        ModelError: when the model is no language model.
        ConfigError: when it has no rotary positions, or the original length is not known.
    """
    spec = model.spec
    if spec.kind != "causal_lm":
        raise ModelError(
            f"Rotary positions are stretched in language models; this is of kind {spec.kind!r}",
            where="rotary_scaling",
            remedy="Give a causal language model",
        )
    options: dict[str, object] = {"rotary_scaling": scaling, "rotary_factor": factor}
    if original_length is not None:
        options["rotary_original_length"] = original_length
    # Passed as options of a run, so that training and this function stretch by the same code.
    shape = TranslatorShape.parse(options)
    embedding, decoder = with_overrides(spec.embedding, spec.decoder, shape, spec.max_length)
    # `max_length` stays: it is the length of training.
    changed = spec.model_copy(update={"embedding": embedding, "decoder": decoder})
    # No weight depends on positions: angles are computed from the spec.
    weights = canonical_weights(model)
    return cast("CausalLM", build_around(changed, weights, where="rotary_scaling"))


def stretching_reader(
    read: ReadModel,
    scaling: RotaryScaling | None,
    factor: float | None,
    original_length: int | None = None,
) -> ReadModel:
    """Return a reader of model directories that stretches each model; `read` without a scaling.

    Args:
        read: reader of a model directory.
        scaling, factor, original_length: arguments of `stretch_rotary`.

    Raises:
        ConfigError: when there is a scaling without a factor, or a factor without a scaling.
    """
    if scaling is None and factor is None and original_length is None:
        return read
    if scaling is None or factor is None:
        raise ConfigError(
            "A scaling of rotary positions needs its kind and its factor",
            where="rotary_scaling",
            remedy="Give both, such as yarn and 4",
        )
    # Names that are never None: type checkers do not narrow parameters inside of closures.
    kind, times = scaling, factor

    def read_stretched(path: Path) -> tuple[AnyModel, TokenizerPair | None]:
        model, tokenizers = read(path)
        return stretch_rotary(model, kind, times, original_length), tokenizers

    return read_stretched
