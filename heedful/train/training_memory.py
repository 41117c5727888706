"""Memory estimates before training: the largest batch that fits, and models that cannot fit."""

from __future__ import annotations

from pathlib import Path

import torch

from heedful.device import resolve_precision
from heedful.engines.cost_memory import LARGEST_TRAINING, training_peak
from heedful.errors import ConfigError, RunError
from heedful.events import Events
from heedful.interop.hugging_face import describe_any
from heedful.memory import available_bytes
from heedful.models.cost import count_parameters, human_bytes, largest
from heedful.models.model_spec import ModelSpec
from heedful.models.preset_files import read_preset_spec
from heedful.models.shape_to_spec import causal_lm_spec, encoder_spec, translator_spec
from heedful.nn.work import BFLOAT16, FLOAT32
from heedful.train.run_settings import RunSettings

MARGIN = 0.2
"""Share of the free memory that is kept for validation, other programs and surprises."""

_STEP = 64  # token budgets are multiples of this


MANY_LAYERS = 200
"""Deeper stacks are refused by their parameter count, as building them takes long."""

# Weight, gradient and two moments of the optimiser, each in float32.
_BYTES_OF_A_PARAMETER = 16


def check_size(
    settings: RunSettings, device: torch.device, *, available: int | None = None
) -> None:
    """Refuse impossible models before any data is read, and very deep ones that cannot fit.

    Args:
        settings: settings of the training run.
        device: device of the model.
        available: free memory in bytes; the device's if None.

    Raises:
        ConfigError: when settings of the model contradict each other.
        RunError: when memory is too small; the parameters and the memory needed are named.
    """
    # An existing model was built before, so its depth is possible.
    if settings.init is not None:
        return
    if not settings.has_text:
        # Sizes of images and labels are not known yet, but expanding the settings already finds
        # contradictions.
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
    """Replace `batch_tokens = auto` by the largest budget that fits, and report it.

    Args:
        settings: settings of a new run.
        device: device of the model.
        events: receivers of a note with the number and its reason.
        available: free memory in bytes; the device's if None.

    Raises:
        RunError: when there is not enough memory for the longest sequence.
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
        # Attention and its memory grow with the rows' length, so the longest rows decide.
        length = min(packed or settings.data.max_length, tokens)
        return training_peak(
            spec,
            # Each row projects keys and values of its memory, too.
            tokens + tokens // length * memory,
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
    # Whole rows of packed pairs; a budget below one step stays as it is.
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
    """Return the probable model of a run before its tokenizer, whose final size may be smaller.

    Args:
        settings: settings of the training run.

    Raises:
        ConfigError: for images.
        ModelError: when the initial model is missing.
    """
    if settings.init is not None:
        return describe_any(Path(settings.init)).spec
    if not settings.has_text:
        raise ConfigError(
            "How large images are is not known before they are read",
            where="data.batch_tokens = auto",
            remedy="Give a number: images times patches of each",
        )
    size, length = settings.tokenizer.vocabulary_size, settings.data.max_length
    if settings.published_preset:
        assert settings.preset is not None
        return read_preset_spec(settings.preset).with_vocabularies(source=size, target=size)
    if settings.model_kind == "causal_lm":
        # The axes of token sequences are read from the data; one of the same length costs as much.
        axes = ((length + 1,),) if settings.base_task == "tokens" else None
        return causal_lm_spec(settings.model, size, length, axes)
    if settings.model_kind == "translator":
        return translator_spec(settings.model, size, size)
    return encoder_spec(settings.model, size, length, ())
