"""Base classes of pipelines that consist of a model, perhaps its tokenizer, and a precision."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from heedful.device import Precision, RunningPrecision, resolve_device
from heedful.engines.inference.prefix_cache import PrefixCache as PrefixCache
from heedful.engines.inference.prefix_cache import PrefixReader as PrefixReader
from heedful.engines.inference.prepare import HeldModel, held
from heedful.errors import ModelError
from heedful.models.checkpoint import ReadModel, load_model
from heedful.pipelines.batching import Shown
from heedful.search.search_settings import not_numbers
from heedful.text.chat_template import ChatPrompt, ChatTemplate, Messages
from heedful.text.tokenizer import TextTokenizer
from heedful.text.tokenizer_pair import TokenizerPair

M = TypeVar("M", bound=nn.Module)


def checked(scores: Tensor) -> Tensor:
    """Return scores as float32, all of which are numbers.

    Raises:
        ModelError: when one is NaN, as after training that diverged.
    """
    if scores.isnan().any():
        raise not_numbers()
    return scores.float()


class ModelPipeline(Shown, Generic[M]):
    """A model and the precision of its forward passes, as a base class of pipelines.

    Args:
        model: model of the class `kind`, perhaps with its engine.
        precision: precision of the forward passes; float32 if unset.
    """

    kind: ClassVar[type[Any]]
    has_tokenizer: ClassVar[bool] = False
    chat: str | None = None
    """The chat template of a model that was trained on conversations."""
    refusal: ClassVar[str]
    """Error message for another kind of model."""
    remedy: ClassVar[str]
    """Remedy in that error."""

    def __init__(self, model: M | HeldModel[M], *, precision: Precision | None = None) -> None:
        (self._held,) = held([model])
        self._precision = precision
        self.spec: Any = self._held.current().spec

    @property
    def model(self) -> M:
        """The model itself, an `nn.Module` that may be changed: each call looks whether it was."""
        model: M = self._held.model
        return model

    @model.setter
    def model(self, model: M) -> None:
        self._held = self._held.replaced(model)
        self.spec = model.spec

    @property
    def engine(self) -> M:
        """The engine of the model as it is now; nobody changes it."""
        engine: M = self._held.current()
        return engine

    @property
    def precision(self) -> Precision | None:
        """Precision of the forward passes; float32 if None."""
        return self._precision or self._held.precision

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
            precision: auto (float32 by the fastest exact method), fp32, bf16, fp16
                or int8.
            read: reader of a model directory.
            shared: folder in which processes share weights; None for weights of its own.

        Raises:
            ModelError: when there is no model, or one of another kind.
            ConfigError: when the device or precision is not available.
        """
        # The device is resolved first, so that a missing one is reported before weights are read.
        where = resolve_device(device)
        model, tokenizers = read(Path(path))
        # Checked before `prepare`, which takes time to pack the weights.
        if not isinstance(model, cls.kind) or (cls.has_tokenizer and tokenizers is None):
            raise ModelError(
                f"{cls.refusal}; its kind is {model.spec.kind!r}",
                where=str(path),
                remedy=cls.remedy,
            )
        held_model = HeldModel.prepared(model, read, Path(path), precision, where, shared)
        make: Callable[..., Self] = cls
        made = make(held_model, *([] if tokenizers is None else cls.tokenizers_of(tokenizers)))
        made.name = str(path)
        made.chat = None if tokenizers is None else tokenizers.chat
        return made

    @classmethod
    def tokenizers_of(cls, tokenizers: TokenizerPair) -> Sequence[Any]:
        """Return what the pipeline takes of a model's tokenizers, as its further arguments."""
        return (tokenizers.source,) if cls.has_tokenizer else ()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """A context without gradients, with autocast to the pipeline's precision."""
        autocast = self.precision.autocast() if self.precision else nullcontext()
        with self._held.running(), torch.inference_mode(), autocast:
            yield


class LongerThanTraining(UserWarning):
    """A text has more tokens than any of the model's training, whose answer nobody has measured."""


class TextPipeline(ModelPipeline[M]):
    """A pipeline of a model with its tokenizer.

    Args:
        model, precision: arguments of `ModelPipeline`.
        tokenizer: tokenizer of the model.
    """

    has_tokenizer = True

    def __init__(
        self,
        model: M | HeldModel[M],
        tokenizer: TextTokenizer,
        *,
        precision: Precision | None = None,
    ) -> None:
        super().__init__(model, precision=precision)
        self.tokenizer = tokenizer

    def notice_length(self, *tokens: int) -> None:
        """Warn once of texts that are longer than those of training.

        Args:
            *tokens: number of tokens of each text, special ones included.
        """
        trained = self.spec.trained_length
        if trained is None or max(tokens, default=0) <= trained:
            return
        stretch = ", or stretch rotary positions (--rotary-scaling yarn --rotary-factor 2)"
        # The same words for each text: Python shows a warning once for its words and place.
        warnings.warn(
            f"{self.name or 'The model'} was trained on texts of at most {trained} tokens, and "
            "this one is longer: past them its answers may be bad. Shorten the text"
            f"{stretch if self.spec.has_rotary else ''}, and measure what comes out (heedful "
            "evaluate --by-position)",
            LongerThanTraining,
            stacklevel=1,
        )

    def chat_prompt(
        self, messages: Messages, tools: Sequence[Mapping[str, Any]] = ()
    ) -> ChatPrompt:
        """Return the prompt for the next answer of a conversation.

        Args:
            messages: messages, each with `role` and `content`.
            tools: functions that an answer may call, in OpenAI's form.

        Raises:
            DataError: when the model's template refuses them.
            ModelError: when the model has learned from no conversations.
        """
        if self.chat is None:
            raise ModelError(
                "This model has no chat template, as it was trained on no conversations",
                where=self.name,
                remedy="Give the text itself as a prompt, or train on lines with messages",
            )
        return ChatTemplate(self.chat).prompt(messages, tools)
