"""The calls of pages, and the requests and helpers that pages share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from heedful.apps.studio.workspace import Workspace
from heedful.config import Config
from heedful.errors import DataError, ModelError
from heedful.inspect.attention_maps import (
    AttentionPart,
    attention,
    attentions,
    choose,
    num_heads,
    parts_of,
    rows_and_columns,
    usual_part,
)
from heedful.inspect.readings import ModelInput, read
from heedful.inspect.silent_tokens import mixer_of
from heedful.inspect.subject import InspectedSubLayer, Subject
from heedful.models.stack_spec import StackSpec
from heedful.search.search_settings import SearchSettings

Answer = Callable[[Any, Workspace], Mapping[str, Any]]
F = TypeVar("F", bound=Answer)

DIGITS = 6
"""Number of significant digits in answers: a float32 has 7, and charts need fewer."""


class NoSettings(Config):
    """The request of a call without settings."""


@dataclass(frozen=True)
class Call:
    """A call that a page's script may make, as `POST /api/PAGE/CALL`.

    Args:
        name: name of the call.
        request: settings of the request's body; other keys are refused.
        answer: function that returns JSON data. It runs in a thread, and may raise a `UserError`.
    """

    name: str
    request: type[Config]
    answer: Answer


def call(request: type[Config] = NoSettings, name: str = "") -> Callable[[F], F]:
    """Mark a function of a page's module as a call.

    Args:
        request: settings of the request's body.
        name: name of the call; the name of the function if empty.
    """

    def mark(answer: F) -> F:
        vars(answer)["call"] = Call(name or answer.__name__, request, answer)
        return answer

    return mark


def round_digits(values: Tensor | np.ndarray) -> Any:
    """Return an array as nested lists of finite numbers of `DIGITS` significant digits."""
    values = torch.as_tensor(values).detach().double().cpu().numpy()
    assert np.isfinite(values).all()
    size = np.floor(np.log10(np.where(values == 0, 1.0, np.abs(values))))
    # If a power of ten is below the range of float64, charts show the number as zero.
    unit = 10.0 ** np.clip(DIGITS - 1 - size, -300, 300)
    return (np.round(values * unit) / unit).tolist()


LONGEST = 4000
"""Maximum number of characters of a text, which limits the waiting time."""
MOST_TOKENS = 512
"""Maximum number of tokens along one side of a chart."""
CONTINUED = 32
"""Maximum number of tokens that a language model adds."""

Second = Literal["", "none", "typed", "own"]


LastLayer = Annotated[
    int, Field(ge=-1, le=10_000, description="index of the layer, from 0; -1 is the last")
]
StackName = Annotated[str, Field(max_length=20)]


class ModelRequest(Config):
    """A model."""

    model: str


class PromptRequest(ModelRequest):
    """A model, and a text for it."""

    text: str


class TextRequest(PromptRequest):
    """A text for a model, with a translation, continuation or second text."""

    second: str = ""
    given: Second = Field("", description="origin of the second text; chosen by the page if empty")


class AttentionViewRequest(TextRequest):
    """A text, a kind of attention, and a layer."""

    part: StackName = Field(
        "", description="encoder, decoder or cross; if empty, the first that the model has"
    )
    layer: LastLayer = -1


class QueryRequest(AttentionViewRequest):
    """A text, and a query position of a head."""

    head: int = Field(0, ge=0, le=10_000)
    row: int = Field(0, ge=0, le=100_000)


class StackRequest(TextRequest):
    """A text, and a stack of the model."""

    stack: StackName = Field(
        "",
        description="encoder or decoder; if empty, the decoder if there is one, or on the page "
        "Block the encoder if there is one",
    )


def subject_of(name: str, workspace: Workspace) -> Subject:
    """Return the model of a name, which must read texts.

    Raises:
        UserError: when the name is unknown.
        ModelError: when the model reads no text.
    """
    loaded = workspace.place(name).load()
    if loaded.tokenizers is None:
        raise ModelError(
            f"This model takes no text; its kind is {loaded.model.spec.kind!r}",
            where=name,
            remedy="Choose a translator, a language model or a text encoder",
        )
    return Subject(loaded.model, loaded.tokenizers)


def read_text(request: TextRequest, workspace: Workspace) -> tuple[Subject, ModelInput]:
    """Return a model and its reading of a text.

    Raises:
        UserError: when there is no such model, or the text is empty, too long, or lacks its second
            text.
    """
    for name, text in (("text", request.text), ("second", request.second)):
        check_length(text, LONGEST, where=name)
    subject = subject_of(request.model, workspace)
    reading = workspace.recent.get(reading_key(request, workspace), lambda: _read(subject, request))
    if reading.length > MOST_TOKENS:
        raise DataError(
            f"{reading.length:,} tokens are more than the {MOST_TOKENS} that can be drawn",
            where="text",
            remedy="Shorten it; `heedful inspect MODEL TEXT -o FILE` writes those of longer texts",
        )
    return subject, reading


def reading_key(request: TextRequest, workspace: Workspace) -> tuple[Any, ...]:
    """Return the cache key of a reading, made of its texts and its model's files."""
    version = workspace.place(request.model).load().version
    return (request.model, version, request.text, request.second, request.given)


MOST_KEPT = 1 << 20
"""Maximum number of attention weights that are cached for further calls about a text: 4 MiB."""


def attention_of(
    request: TextRequest, workspace: Workspace, part: AttentionPart, layer: int
) -> np.ndarray:
    """Return the attention weights of a layer, [H, Lq, Lk], from one pass for all layers.

    Raises:
        ConfigError: when the model does not have the layer.
    """
    subject, reading = read_text(request, workspace)
    modules = attentions(subject.model, part)
    rows, columns = rows_and_columns(reading, part)
    if len(modules) * num_heads(modules) * len(rows) * len(columns) > MOST_KEPT:
        return np.asarray(attention(subject, reading, part, layers=[layer]).weights[0])
    key = ("attention", part, *reading_key(request, workspace))
    whole = workspace.recent.get(key, lambda: attention(subject, reading, part))
    (layer,) = choose([layer], len(modules), "layer")
    return np.asarray(whole.weights[layer])


def attentions_of(
    subject: Subject, part: str, layer: int = -1
) -> tuple[AttentionPart, dict[str, InspectedSubLayer], int]:
    """Return a kind of attention, its layers by address, and the index of one layer.

    Args:
        subject: model to inspect.
        part: encoder, decoder or cross; if empty, the first of these that the model has.
        layer: index of the layer, from 0; −1 is the last.

    Raises:
        UserError: when the model has no such attention.
    """
    parts = parts_of(subject.model)
    # Without attention, `usual_part` says so. Of several kinds the first comes first: a text is
    # read before it is translated.
    name: Any = part or (parts[0] if parts else usual_part(subject.model))
    modules = attentions(subject.model, name)
    return name, modules, len(modules) - 1 if layer < 0 else layer


def mixer_kinds(stacks: Iterable[StackSpec]) -> list[str]:
    """Return the names of the kinds of mixers in stacks, each once."""
    mixers = (mixer_of(block) for stack in stacks for block in stack.pattern)
    return [*dict.fromkeys(each.part.kind.replace("_", " ") for each in mixers if each)]


def layer_of(address: str) -> int:
    """Return the index of the block in an address such as `decoder.3.cross`."""
    return int(address.split(".")[1])


def check_length(text: str, longest: int, *, where: str, remedy: str = "Shorten it") -> None:
    """Refuse a text whose computation would take too long.

    Raises:
        DataError: when the text is longer.
    """
    if len(text) > longest:
        raise DataError(
            f"The text has {len(text):,} characters; at most {longest:,} are allowed here",
            where=where,
            remedy=remedy,
        )


def _read(subject: Subject, request: TextRequest) -> ModelInput:
    spec = subject.model.spec
    translates = spec.reads == "pairs"
    second = request.given or ("own" if translates else "none")
    if second == "typed":
        if not request.second.strip():
            raise DataError("No second text is typed yet", where="second")
        return read(subject, request.text, request.second)
    if second == "none" and translates:
        raise DataError(
            "A translator's decoder reads a translation",
            where="given",
            remedy="Type one, or let the model write it",
        )
    if second == "none" or translates:
        return read(subject, request.text)
    if not spec.generates:
        raise DataError(
            "This model writes no text", where="given", remedy="Type a second one, or none"
        )
    search = SearchSettings(beam=1, max_length=CONTINUED)
    return read(subject, request.text, search=search)
