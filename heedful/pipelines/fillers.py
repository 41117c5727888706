"""Loading of the pipeline that fills the gaps of texts: an encoder or an encoder-decoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Unpack

from heedful.data.corruption import gap_tokens
from heedful.device import Precision, RunningPrecision
from heedful.engines.inference.prepare import HeldModel
from heedful.errors import ModelError
from heedful.interop.model_loading import load_any
from heedful.models.checkpoint import ReadModel
from heedful.models.translator import Translator
from heedful.pipelines.gap_filling import GapPipeline
from heedful.pipelines.predictions import Candidate
from heedful.pipelines.read_once import ReadOnce
from heedful.pipelines.text_encoding import EncoderPipeline, EncodingOptions
from heedful.text.tokenizer_pair import TokenizerPair


class Filler(Protocol):
    """A pipeline that fills the gaps of texts."""

    def require(self, head: str) -> None:
        """Refuse a task that the model has no head for."""
        ...

    def fill(
        self, texts: Sequence[str], *, top: int = 5, **options: Unpack[EncodingOptions]
    ) -> list[list[list[Candidate]]]:
        """Return candidates for each gap of each text, the most probable first."""
        ...


def load_filler(
    path: str | Path,
    *,
    device: str = "auto",
    precision: RunningPrecision = "auto",
    read: ReadModel = load_any,
) -> Filler:
    """Load an encoder, or an encoder-decoder that was trained to fill gaps.

    Args:
        path: a model directory or a run directory (its best model).
        device: auto, cpu, cuda, cuda:1 or mps.
        precision: auto (float32 by the fastest exact method), fp32, bf16, fp16 or int8.
        read: reader of a model directory.

    Raises:
        ModelError: when there is no model, or one that cannot fill gaps.
        ConfigError: when the device or precision is not available.
    """
    # Read once: the kind of model decides the pipeline, and reading weights takes time.
    once = ReadOnce(Path(path), read)
    if once.spec.reads != "pairs" or once.tokenizers is None:
        return EncoderPipeline.load(path, device=device, precision=precision, read=once)
    check_fills(once.tokenizers, str(path))
    return GapPipeline.load(path, device=device, precision=precision, read=once)


def check_fills(tokenizers: TokenizerPair, where: str) -> None:
    """Refuse a translator that fills no gaps.

    Args:
        tokenizers: tokenizers of its source and target.
        where: name of the model in the error.

    Raises:
        ModelError: when its sides differ, or there are no tokens for gaps.
    """
    # What fills a gap is text of the source's language, so both sides have one vocabulary.
    if not tokenizers.joint or not gap_tokens(tokenizers.source):
        raise ModelError(
            "This model is no encoder of text, and its tokenizer has no mask and no sentinels",
            where=where,
            remedy=GapPipeline.remedy,
        )


def gap_pipeline(
    model: HeldModel[Translator],
    tokenizers: TokenizerPair,
    precision: Precision | None,
    *,
    where: str,
) -> GapPipeline:
    """Return the pipeline that fills gaps with a translator that is held already.

    Args:
        model: encoder-decoder with its engine.
        tokenizers: tokenizers of its source and target.
        precision: precision of the forward passes; that of the engine if None.
        where: name of the model in errors.

    Raises:
        ModelError: when the model fills no gaps.
    """
    check_fills(tokenizers, where)
    return GapPipeline(model, tokenizers.source, precision=precision)
