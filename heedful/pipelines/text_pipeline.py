"""A directory as a model of text that is ready to run, for the pipelines of one model."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from heedful.device import Precision, RunningPrecision, resolve_device
from heedful.engines.prepare import precision_of, prepare
from heedful.errors import ModelError
from heedful.models.causal_lm import CausalLM
from heedful.models.checkpoint import ReadModel
from heedful.models.encoder import EncoderModel
from heedful.text.tokenizer import TextTokenizer

M = TypeVar("M", CausalLM, EncoderModel)


def load_text_model(
    kind: type[M],
    path: str | Path,
    device: str,
    precision: RunningPrecision,
    read: ReadModel,
    *,
    refusal: str,
    remedy: str,
) -> tuple[M, TextTokenizer, Precision | None]:
    """A model of one kind where it will run, the tokenizer of its texts, and the precision.

    Args:
        kind: the class it must be of.
        path: a model directory or a run directory (its best model).
        device: auto, cpu, cuda, cuda:1 or mps.
        precision: auto (float32, on the fastest route that is as exact), fp32, bf16, fp16 or int8.
        read: what reads a directory.
        refusal: what to say of another kind of model.
        remedy: what to give instead.

    Raises:
        ModelError: when there is no model, or one of another kind.
        ConfigError: when the device or precision is not to be had.
    """
    where = resolve_device(device)
    model, tokenizers = read(Path(path))
    if not isinstance(model, kind) or tokenizers is None:
        raise ModelError(
            f"{refusal}; its kind is {model.spec.kind!r}", where=str(path), remedy=remedy
        )
    engine = prepare(model, precision, where, donate=True)
    return engine, tokenizers.source, precision_of(engine)
