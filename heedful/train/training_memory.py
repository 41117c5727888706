"""Memory before training: the largest batch that fits (`auto`), and models that never will."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from heedful.device import resolve_precision
from heedful.engines.cost_memory import LARGEST_TRAINING, training_peak
from heedful.errors import ConfigError, RunError
from heedful.interop.hugging_face import describe_any
from heedful.memory import available_bytes
from heedful.models.cost import count_parameters, human_bytes, largest
from heedful.models.preset_files import read_preset_spec
from heedful.models.shape_to_spec import causal_lm_spec, encoder_spec
from heedful.nn.work import BFLOAT16, FLOAT32

if TYPE_CHECKING:
    import torch

    from heedful.events import Events
    from heedful.models.model_spec import ModelSpec
    from heedful.train.run_settings import RunSettings

MARGIN = 0.2
"""Share of the free memory that is left to validation, to others, and to what was not foreseen."""

_STEP = 64
"""Budgets are multiples of it."""


MANY_LAYERS = 200
"""Stacks of more layers are counted before they are built; others are built in no time."""

_BYTES_OF_A_PARAMETER = 16
"""Weight, gradient and two moments of the optimiser, in float32."""


def check_size(
    settings: RunSettings, device: torch.device, *, available: int | None = None
) -> None:
    """Refuse settings of which no model can be made, before any data are read.

    A model of very many layers that cannot be trained here is among them.

    Args:
        settings: of a run.
        device: that is trained on.
        available: bytes; those of the device if unset.

    Raises:
        ConfigError: when settings of the model contradict each other.
        RunError: naming the parameters and the memory that it would need.
    """
    if settings.init is not None:
        return
    if settings.task == "images":
        spec: ModelSpec = encoder_spec(settings.model, 1, 1, ())
    else:
        spec = likely_spec(settings)
    layers = {name: getattr(settings.model, name) for name in ("encoder_layers", "decoder_layers")}
    if max(layers.values()) <= MANY_LAYERS:
        return
    parameters = count_parameters(spec)
    needed = _BYTES_OF_A_PARAMETER * parameters
    if available is None:
        available = available_bytes(device)
    if needed > available:
        name = max(layers, key=layers.__getitem__)
        raise RunError(
            f"A model with model.{name} = {layers[name]:,} has {parameters:,} parameters; training "
            f"needs at least {human_bytes(needed)} for them, and {human_bytes(available)} are free",
            where=f"model.{name}",
            remedy="Take fewer layers, or a smaller width",
        )


def with_budget(
    settings: RunSettings,
    device: torch.device,
    events: Events,
    *,
    available: int | None = None,
) -> RunSettings:
    """The settings with a number in the place of `auto`, which is said; others as they are.

    Args:
        settings: of a run that begins.
        device: that is trained on.
        events: receive a note of the number and the reason.
        available: bytes; those of the device if unset.

    Raises:
        RunError: when there is not enough memory for the longest text.
    """
    if settings.data.batch_tokens != "auto":
        return settings
    if available is None:
        available = available_bytes(device)
    spec = likely_spec(settings)
    parameters = count_parameters(spec)
    precision = resolve_precision(settings.precision, device, width=spec.width)
    number_bytes = FLOAT32 if precision.name == "fp32" else BFLOAT16
    usable = round(available * (1 - MARGIN))

    memory = getattr(spec, "memory", None) or 0
    packed = settings.data.packed_length

    def needed(tokens: int) -> int:
        length = min(packed or settings.data.max_length, tokens)
        return training_peak(
            spec,
            tokens + tokens // length * memory,  # of which each row makes keys and values too
            length=length + memory,
            parameters=parameters,
            number_bytes=number_bytes,
            moving_average=settings.checkpoint.ema_decay > 0,
            accumulated=settings.optimizer.accumulate > 1,
            device=device.type,
            checkpointing=settings.checkpointing,
        ).needed

    picked = largest(lambda tokens: needed(tokens) <= usable, LARGEST_TRAINING)
    step = packed or _STEP
    picked = picked // step * step or picked
    longest = packed or settings.data.max_length + 1
    if picked < longest:
        name = "max_length" if packed is None else "packed_length"
        raise RunError(
            f"Training needs {human_bytes(needed(longest))} for a batch with one text of "
            f"data.{name} = {getattr(settings.data, name)}, and {human_bytes(available)} are free",
            where="data.batch_tokens = auto",
            remedy=f"Free memory, lower data.{name}, or take a smaller model",
        )
    most = " (the most that auto takes)" if needed(picked + step) <= usable else ""
    events.note(
        f"Batches of {picked:,} positions{most}: training needs about "
        f"{human_bytes(needed(picked))} at {precision.name}, and {human_bytes(available)} are free "
        f"on {device.type}, of which {MARGIN:.0%} are left alone"
    )
    return settings.with_batch_tokens(picked)


def likely_spec(settings: RunSettings) -> ModelSpec:
    """The model of a run before its tokenizer is made, which may get fewer pieces than asked for.

    Args:
        settings: of the run.

    Raises:
        ConfigError: for images.
        ModelError: when there is no model to begin with.
    """
    if settings.init is not None:
        return describe_any(Path(settings.init)).spec
    if settings.task == "images":
        raise ConfigError(
            "How large images are is not known before they are read",
            where="data.batch_tokens = auto",
            remedy="Give a number: images times patches of each",
        )
    size, length = settings.tokenizer.vocabulary_size, settings.data.max_length
    if settings.published_preset:
        assert settings.preset is not None
        return read_preset_spec(settings.preset).with_vocabularies(source=size, target=size)
    if settings.task == "causal_lm":
        return causal_lm_spec(settings.model, size, length)
    if settings.task in ("translation", "span_corruption", "denoising"):
        return settings.model.expand(size, size)
    return encoder_spec(settings.model, size, length, ())
