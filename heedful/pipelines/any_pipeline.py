"""Loading of the pipeline that a model's kind asks for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from heedful.device import RunningPrecision, standard_tensors
from heedful.errors import ModelError, is_of_torch
from heedful.interop.model_loading import load_any
from heedful.models.model_spec import MODEL_KINDS, ModelSpec
from heedful.pipelines.read_once import ReadOnce

if TYPE_CHECKING:
    from heedful.models.checkpoint import ReadModel
    from heedful.text.tokenizer_pair import TokenizerPair

_RECORDS = {  # uses, and no kinds of model
    "records": "heedful.pipelines.record_answers:RecordPipeline",
    "ctc": "heedful.pipelines.ctc_answers:CTCPipeline",
}


@standard_tensors()
def load_pipeline(
    path: str | Path | Sequence[str | Path],
    *,
    device: str = "auto",
    precision: RunningPrecision = "auto",
    read: ReadModel = load_any,
    **options: Any,
) -> Any:
    """Load a model of any kind.

    Args:
        path: model directory, run directory (its best model), Hugging Face directory, or the name
            of a model; several make an ensemble of translators.
        device: auto, cpu, cuda, cuda:1 or mps.
        precision: auto (float32 by the fastest exact method), fp32, bf16, fp16 or int8.
        read: reader of a model directory.
        **options: `shortlist` and `split`, which translators alone have; None for one that is
            not set.

    Returns:
        A `TranslationPipeline`, `GenerationPipeline` (a `RecordPipeline` is one),
        `EncoderPipeline`, `ImagePipeline`, `TwoTowersPipeline`, `TranscriptionPipeline` or
        `DrawingPipeline`.

    Raises:
        ModelError: when the directory holds no model, or one without an option that is set.
        ConfigError: when the device or precision is not available.
    """
    options = {name: value for name, value in options.items() if value is not None}
    if not isinstance(path, str | Path):
        path = list(path)
        return loaded_as(
            "translator", path, device=device, precision=precision, read=read, **options
        )
    try:
        once = ReadOnce(Path(path), read)
    except ModuleNotFoundError as error:
        if not is_of_torch(error):
            raise
        # Without PyTorch only translators are loaded; models of other kinds are refused there.
        return loaded_as("translator", path, device=device, precision=precision, **options)
    kind = record_use(once.spec, once.tokenizers) or once.spec.kind
    if options and kind != "translator":
        raise ModelError(
            f"Only translators have the option {' and '.join(options)}; its kind is {kind!r}",
            where=str(path),
            remedy="Leave it out",
        )
    return loaded_as(kind, path, device=device, precision=precision, read=once, **options)


def loaded_as(kind: str, model: Any, **options: Any) -> Any:
    """Return the pipeline of one kind of model, loaded already or from a directory or name.

    Args:
        kind: kind of the model, such as `encoder`, or a result of `record_use`.
        model: pipeline, directory or name.
        **options: arguments of the pipeline's `load`.

    Raises:
        ModelError: when the model is of another kind, or there is none.
        ConfigError: when the device or precision is not available.
    """
    wanted = resolve_name(_RECORDS[kind] if kind in _RECORDS else MODEL_KINDS[kind].pipeline)
    if isinstance(model, str | Path | list | tuple):
        return wanted.load(model, **{"read": load_any, **options})
    if not isinstance(model, wanted):
        raise ModelError(
            f"A {wanted.__name__} is needed, and this is a {type(model).__name__}",
            where=getattr(model, "name", "") or None,
            remedy=wanted.remedy,
        )
    return model


def load_generator(
    path: str | Path, *, rotary: tuple[Any, ...] = (None, None, None), **options: Any
) -> Any:
    """Load a language model, or a model that completes records, transcribes sounds or draws.

    Args:
        path: a model directory or a run directory (its best model).
        rotary: arguments of `stretching_reader`.
        **options: `device` and `precision` of the pipeline's `load`.

    Returns:
        A `GenerationPipeline`, a `RecordPipeline`, which is one, a `TranscriptionPipeline` or a
        `DrawingPipeline`.

    Raises:
        ModelError: when there is no model, or one that continues nothing.
        ConfigError: when the device or precision is not available.
    """
    from heedful.models.rotary_override import stretching_reader  # translators load without PyTorch

    once = ReadOnce(Path(path), stretching_reader(load_any, *rotary))
    # A translator of texts is refused by the pipeline of language models, which names the task.
    other = {"captions": "denoiser", "sounds": "transcriber"}.get(once.spec.reads, "causal_lm")
    kind = record_use(once.spec, once.tokenizers) or other
    return loaded_as(kind, path, read=once, **options)


def record_use(spec: ModelSpec, tokenizers: TokenizerPair | None) -> str | None:
    """Return `records` for an encoder-decoder of records, `ctc` for an encoder that answers them.

    Other models have none.
    """
    from heedful.text.field_tokenizer import FieldTokenizer  # few models have fields

    target = None if tokenizers is None else tokenizers.target
    if not isinstance(target, FieldTokenizer):
        return None
    return "records" if spec.reads == "pairs" else "ctc" if spec.kind == "encoder" else None
