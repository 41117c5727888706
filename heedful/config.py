"""Settings as frozen values: read from TOML or flags, validated at once, written back complete.

A `Config` refuses unknown keys and suggests the right one. It never holds code or import paths, so
a configuration file from elsewhere is only data.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pydantic

from heedful.errors import ConfigError, suggest

PositiveInt = Annotated[int, pydantic.Field(gt=0)]
Probability = Annotated[float, pydantic.Field(ge=0.0, lt=1.0)]


class Config(pydantic.BaseModel):
    """Base of every settings class: frozen, keyword-only, unknown keys refused."""

    model_config = pydantic.ConfigDict(
        defer_build=True,  # help needs no validators
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
    )

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, where: str | None = None) -> Self:
        """Build from plain data.

        Args:
            values: nested dictionaries, lists, strings, numbers and booleans.
            where: the file or flag the values came from, for the error message.

        Raises:
            ConfigError: naming every key at fault, with a suggestion for unknown ones.
        """
        try:
            # Strict, so that a string or a boolean is not taken for a number. As JSON, because that
            # is where pydantic's strictness still takes lists for tuples and mappings for models.
            current = json.dumps(dict(cls.upgrade(values)), default=str)
            return cls.model_validate_json(current, strict=True)
        except pydantic.ValidationError as error:
            raise validation_error(cls, error, where) from None

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return plain data in the present form; older forms are a subclass's to know."""
        return values

    @classmethod
    def headline(cls) -> str:
        """Return the first line of the docstring: what it is, in a sentence."""
        return (cls.__doc__ or "").splitlines()[0]

    def plain(self) -> dict[str, Any]:
        """The settings as nested plain data (JSON types; unset optional values left out)."""
        return self.model_dump(mode="json", exclude_none=True)


@contextmanager
def explained(where: str, *, remedy: str) -> Iterator[None]:
    """A context, or a decorator, in which a rule that a `Config` breaks is a person's mistake.

    For settings classes made from other settings, by their constructors.

    Args:
        where: the settings that they are made from.
        remedy: what to do next, a sentence without a final full stop.

    Raises:
        ConfigError: in the place of pydantic's error, with its rules.
    """
    try:
        yield
    except pydantic.ValidationError as error:
        what = validation_error(Config, error, where).what
        raise ConfigError(what, where=where, remedy=remedy) from None


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        ConfigError: when the file is missing, a pipe, not UTF-8 or not TOML.
    """
    if path.is_fifo() or path.is_socket():  # reading it may wait for ever, and happens twice
        raise ConfigError(
            "A named pipe or a socket in the place of a configuration file",
            where=str(path),
            remedy="Write the settings to a file and name that",
        )
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            "No such configuration file", where=str(path), remedy="Check the path"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"Cannot be read: {error}", where=str(path), remedy="Correct the file"
        ) from None
    return read_toml_text(text, where=str(path))


def read_toml_text(text: str, *, where: str) -> dict[str, Any]:
    """Parse TOML.

    Args:
        text: the content.
        where: name of the file or flag, for the error message.

    Raises:
        ConfigError: when it is not TOML.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"Not TOML: {error}", where=where, remedy="Correct the file") from None


def dump_toml(values: Mapping[str, Any]) -> str:
    """Write nested plain data as TOML. None has no TOML form, so such keys must be left out."""
    import tomli_w

    return tomli_w.dumps(values)


def flat(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Flatten nested tables to one with dotted keys."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{path}{key}.")
        else:
            result[path + key] = value
    return result


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Overlay nested mappings: merge tables key by key, replace other values by later ones."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            below = merged.get(key)
            if isinstance(value, Mapping) and isinstance(below, Mapping):
                merged[key] = merge(below, value)
            else:
                merged[key] = value
    return merged


def validation_error(
    cls: type[pydantic.BaseModel], error: pydantic.ValidationError, where: str | None
) -> ConfigError:
    """Return pydantic's error in words, with a suggestion for an unknown key.

    Args:
        cls: whose values were checked.
        error: of the check.
        where: the file, flag or request that the values came from.
    """
    problems: list[str] = []
    remedy: str | None = None
    for item in error.errors():
        key = _cut(".".join(str(part) for part in item["loc"]) or cls.__name__)
        if item["type"] == "extra_forbidden":
            problems.append(f"Unknown setting {key!r}")
            remedy = remedy or suggest(str(item["loc"][-1]), _siblings(cls, item["loc"][:-1]))
        elif item["type"] == "value_error":  # a rule of ours, said in a sentence of ours
            place = f"{key}: " if item["loc"] else ""
            problems.append(place + _cut(item["msg"].removeprefix("Value error, "), _LONGEST_RULE))
        elif item["type"] == "missing":
            problems.append(f"Setting {key!r} is required and missing")
        else:
            problems.append(f"Setting {key!r} = {_cut(repr(item['input']))}: {_in_words(item)}")
    shown = problems[:_MOST_PROBLEMS]
    if len(problems) > len(shown):
        shown.append(f"and {len(problems) - len(shown):,} more")
    return ConfigError("; ".join(shown), where=where, remedy=remedy)


_MOST_PROBLEMS = 5
_LONGEST_ECHO = 60
"""Characters of a wrong value or name that are repeated in its error."""
_LONGEST_RULE = 300
"""Characters of a rule's own sentence, which may repeat a value too."""

_WORDS = {
    "bool_type": "must be true or false",
    "dict_type": "must be a table of names and values",
    "finite_number": "must be a finite number",
    "float_type": "must be a number",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "int_from_float": "must be a whole number",
    "int_parsing_size": "is larger than any number that is taken",
    "int_type": "must be a whole number",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "model_type": "must be a table of names and values",
    "multiple_of": "must be a multiple of {multiple_of}",
    "none_required": "must be left out",
    "path_type": "must be a path",
    "string_pattern_mismatch": "must look like {pattern}",
    "string_too_long": "has more than {max_length} characters",
    "string_too_short": "has fewer than {min_length} characters",
    "string_type": "must be a text",
    "string_unicode": "must be Unicode text, without halves of characters",
    "too_long": "has {actual_length} values; at most {max_length} are taken",
    "too_short": "has {actual_length} values; at least {min_length} are needed",
    "tuple_type": "must be a list",
    "union_tag_invalid": "must have {discriminator} {expected_tags}",
    "union_tag_not_found": "lacks {discriminator}, which says its kind",
}
"""The fault of a value in words, for each kind of pydantic error."""


def _cut(text: str, longest: int = _LONGEST_ECHO) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"


def _in_words(item: Any) -> str:
    """Return the reason of a pydantic error as a person would say it."""
    words = _WORDS.get(item["type"])
    if words is None:
        return str(item["msg"])
    facts = {name: _whole(value) for name, value in item.get("ctx", {}).items()}
    return words.format(**facts)


def _whole(value: Any) -> Any:
    """Return a bound as it was written: pydantic makes 1 of a bound of floats 1.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _siblings(cls: type[pydantic.BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Names of the settings that exist at a location of the tree."""
    here: set[type[pydantic.BaseModel]] = {cls}
    for part in location:
        below: set[type[pydantic.BaseModel]] = set()
        for model in here:
            field = model.model_fields.get(str(part))
            below |= _models_in(field.annotation) if field else set()
        here = below or here  # an index or a union tag stays at the same models
    return sorted(name for model in here for name in model.model_fields)


def _models_in(annotation: Any) -> set[type[pydantic.BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return {annotation}
    return {m for part in getattr(annotation, "__args__", ()) for m in _models_in(part)}


# Words that both settings and specs choose from. They stand here so that the flags of a run, which
# are made of them, load no spec: `heedful train --help` is 30 ms sooner there.

PlainActivation = Literal["relu", "gelu", "gelu_tanh", "silu"]

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu", "geglu_tanh", "reglu"]

PositionScheme = Literal[
    "sinusoidal",
    "learned",
    "none",
    "rotary",
    "alibi",
    "kerple",
    "t5",
    "relative_keys",
    "transformer_xl",
]
"""The ways of a model to know positions: embeddings, rotation, or a bias by its kind."""

MixerName = Literal[
    "attention",
    "linear_attention",
    "linformer",
    "average_attention",
    "ssru",
    "s4d",
    "mamba",
    "rwkv",
]
"""The ways in which tokens exchange information; `heedful.models.mixers` makes their specs."""

Cell = Literal["rnn", "lstm", "gru"]
"""Elman's (1990), with tanh; Hochreiter and Schmidhuber's (1997); Cho's (2014)."""

Direction = Literal["forward", "backward", "both"]
"""The order in which a recurrent layer reads a text. Backward is the reversed source of Sutskever
2014; both halves of a layer that reads both ways have half of its width (Schuster 1997)."""

Feeding = Literal["none", "context", "output"]
"""Beside a token the first layer of a recurrent decoder reads nothing; the context vector
(Cho 2014; Bahdanau 2015); the output of the step before (input feeding, Luong 2015)."""

Readout = Literal["none", "tanh", "maxout"]
"""The output of a recurrent decoder, of state s, token y and context c: s; tanh(W[c; s]) (Luong
2015); the larger of each pair of W[s; y; c] (Goodfellow 2013; Cho 2014; Bahdanau 2015)."""
