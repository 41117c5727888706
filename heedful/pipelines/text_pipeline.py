"""Base class of pipelines that consist of a model, its tokenizer and a precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import torch

from heedful.device import Precision, RunningPrecision, resolve_device
from heedful.engines.inference.prepare import precision_of, prepare
from heedful.errors import ModelError
from heedful.models.causal_lm import CausalLM
from heedful.models.checkpoint import ReadModel, load_model
from heedful.models.encoder import EncoderModel
from heedful.text.tokenizer import TextTokenizer

M = TypeVar("M", bound=CausalLM | EncoderModel)


class TextPipeline(Generic[M]):
    """A model with its tokenizer, as a base class of pipelines.

    Args:
        model: model of the class `kind`.
        tokenizer: tokenizer of the model.
        precision: precision of the forward passes; float32 if unset.
    """

    kind: ClassVar[type[Any]]
    refusal: ClassVar[str]
    """Error message for another kind of model."""
    remedy: ClassVar[str]
    """Remedy in that error."""

    def __init__(
        self, model: M, tokenizer: TextTokenizer, *, precision: Precision | None = None
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.precision = precision

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        device: str = "auto",
        precision: RunningPrecision = "auto",
        read: ReadModel = load_model,
        shared: Path | None = None,
    ) -> Self:
        """Load a model directory.

        Args:
            path: a model directory or a run directory (its best model).
            device: auto, cpu, cuda, cuda:1 or mps.
            precision: auto (float32, on the fastest route that is as exact), fp32, bf16, fp16
                or int8.
            read: reader of a model directory.
            shared: folder in which processes share weights; None for weights of its own.

        Raises:
            ModelError: when there is no model, or one of another kind.
            ConfigError: when the device or precision is not available.
        """
        where = resolve_device(device)
        model, tokenizers = read(Path(path))
        # Checked before `prepare`, which takes time to pack the weights.
        if not isinstance(model, cls.kind) or tokenizers is None:
            raise ModelError(
                f"{cls.refusal}; its kind is {model.spec.kind!r}",
                where=str(path),
                remedy=cls.remedy,
            )
        engine = prepare(model, precision, where, donate=True, shared=shared)
        return cls(cast(M, engine), tokenizers.source, precision=precision_of(engine))

    @contextmanager
    def computing(self) -> Iterator[None]:
        """A context without gradients, with autocast to the pipeline's precision."""
        with torch.inference_mode(), self.precision.autocast() if self.precision else nullcontext():
            yield
