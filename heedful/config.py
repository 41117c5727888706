"""Settings as frozen values: read from TOML or flags, validated at once, saved completely.

A `Config` refuses unknown keys and suggests the right ones. It never holds code or import paths, so
a configuration file from an unknown source is only data.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args

import pydantic

from heedful.errors import ConfigError, suggest

PositiveInt = Annotated[int, pydantic.Field(gt=0)]
Probability = Annotated[float, pydantic.Field(ge=0.0, lt=1.0)]


class Config(pydantic.BaseModel):
    """Base of every settings class: frozen, keyword-only, unknown keys refused."""

    model_config = pydantic.ConfigDict(
        defer_build=True,  # validators are built when they are needed, which help texts never do
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,  # JSON has neither
    )

    @classmethod
    def parse(cls, values: Mapping[str, Any], *, where: str | None = None) -> Self:
        """Make settings from plain data.

        Args:
            values: nested dictionaries, lists, strings, numbers and booleans.
            where: file or flag of the values, for the error message.

        Raises:
            ConfigError: when a value is refused, with every wrong key and suggestions.
        """
        try:
            # Strict: a string or a boolean is not accepted as a number. The values are passed as
            # JSON, for which pydantic's strict mode still accepts lists as tuples and mappings as
            # models.
            current = json.dumps(dict(cls.upgrade(values)), default=str)
            return cls.model_validate_json(current, strict=True)
        except pydantic.ValidationError as error:
            raise validation_error(cls, error, where) from None

    @classmethod
    def upgrade(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Convert plain data of an older version to the current one; subclasses override it."""
        return values

    @classmethod
    def headline(cls) -> str:
        """Return the first line of the docstring, a description in one sentence."""
        return (cls.__doc__ or "").splitlines()[0]

    @classmethod
    def known_as(cls) -> str:
        """Return the name of a class in files and settings: its `kind`."""
        kind: str = cls.model_fields["kind"].default
        return kind

    def plain(self) -> dict[str, Any]:
        """The settings as nested plain data of JSON types, without unset optional values."""
        # TOML has no null, so an optional value that is unset is left out.
        return self.model_dump(mode="json", exclude_none=True)


@contextmanager
def explained(where: str, *, remedy: str) -> Iterator[None]:
    """A context or decorator that turns pydantic's errors into `ConfigError`.

    It is for settings that are made from a user's settings by calling constructors.

    Args:
        where: name of the user's settings.
        remedy: advice to the user, a sentence without a final full stop.

    Raises:
        ConfigError: instead of a pydantic error, with the broken rules.
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
    if path.is_fifo() or path.is_socket():  # could block forever, and cannot be read a second time
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
        text: content of the file or flag.
        where: name of the file or flag, for the error message.

    Raises:
        ConfigError: when the text is not TOML.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"Not TOML: {error}", where=where, remedy="Correct the file") from None


def dump_toml(values: Mapping[str, Any]) -> str:
    """Write nested plain data as TOML. None has no TOML form, so such keys must be left out."""
    import tomli_w  # needed only where settings are written

    return tomli_w.dumps(values)


def flat(values: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Flatten nested tables to one table with dotted keys."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{path}{key}.")
        else:
            result[path + key] = value
    return result


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Overlay nested mappings: tables are merged key by key, other values replaced."""
    merged: dict[str, Any] = {}
    for layer in layers:
        # A list is a value: entries of two layers are never mixed.
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
    """Convert an error of pydantic to a `ConfigError` in plain words.

    Args:
        cls: class whose validation failed.
        error: error of pydantic.
        where: file, flag or request of the values.
    """
    problems: list[str] = []
    remedy: str | None = None
    items = error.errors()
    holders = {item["loc"][:end] for item in items for end in range(len(item["loc"]))}
    # pydantic's own messages show its internals, such as `function-after`.
    for item in items:
        path = (str(part) for part in item["loc"] if part != _REGISTERED)
        key = _cut(".".join(path) or cls.__name__)
        if item["type"] == "too_short" and item["loc"] in holders:
            continue  # of wrong items, which are told
        if item["type"] == "extra_forbidden":
            problems.append(f"Unknown setting {key!r}")
            remedy = remedy or suggest(str(item["loc"][-1]), _siblings(cls, item["loc"][:-1]))
        elif item["type"] == "value_error":  # one of Heedful's own rules, with its own sentence
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


_MOST_PROBLEMS = 5  # in one message; a wrong file may have thousands
_LONGEST_ECHO = 60
"""Most characters of a wrong value or name in an error message."""
_LONGEST_RULE = 300
"""Most characters of a rule's own sentence, which may also repeat a value."""

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
    "is_instance_of": "must be a table of names and values",
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
"""Description of a wrong value for each kind of pydantic error."""


def _cut(text: str, longest: int = _LONGEST_ECHO) -> str:
    return text if len(text) <= longest else f"{text[:longest]}…"


def _in_words(item: Any) -> str:
    """Return the reason of a pydantic error in plain words."""
    words = _WORDS.get(item["type"])
    if words is None:
        return str(item["msg"])
    facts = {name: _whole(value) for name, value in item.get("ctx", {}).items()}
    return words.format(**facts)


def _whole(value: Any) -> Any:
    """Return a bound as it was written: for floats pydantic converts a bound of 1 to 1.0."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _siblings(cls: type[pydantic.BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Names of the settings that exist at a location of the tree."""
    here: set[type[pydantic.BaseModel]] = {cls}
    for part in location:
        below: set[type[pydantic.BaseModel]] = set()
        for model in here:
            field = model.model_fields.get(str(part))
            below |= _models_in(field.annotation) if field else set()
        here = below or here  # list indices and union tags do not change the model
    return sorted(name for model in here for name in model.model_fields)


def _models_in(annotation: Any) -> set[type[pydantic.BaseModel]]:
    # Optional and tuple types hold models in their arguments.
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return {annotation}
    return {m for part in getattr(annotation, "__args__", ()) for m in _models_in(part)}


_Spec = TypeVar("_Spec")


def open_class(family: str, name: str, own: Mapping[str, type[_Spec]]) -> type[_Spec]:
    """Return the class with a name: one of the package's own, or a registered one.

    Args:
        family: family of the registry.
        name: name in files and settings.
        own: the package's own classes, which are found without the registry.

    Raises:
        ValueError: when no class has this name.
    """
    if name in own:
        return own[name]
    from heedful.registry import find  # few models have parts from outside the package

    found: type[_Spec] = find(family, name, tuple(own))
    return found


def open_names(family: str, own: Any) -> pydantic.AfterValidator:
    """Return a validator that accepts the package's own names and registered ones.

    Args:
        family: family of the registry.
        own: the `Literal` of the package's own names.
    """
    names = dict.fromkeys(get_args(own), str)

    def check(name: str) -> str:
        open_class(family, name, names)
        return name

    return pydantic.AfterValidator(check)


def open_union(family: str, own: Any) -> Any:
    """Return a union of specs that is discriminated by `kind` and open to registered specs.

    Args:
        family: family of the registry.
        own: the union of the package's own specs, which are read without the registry.
    """
    classes = {spec.known_as(): spec for spec in get_args(own)}
    choices = [Annotated[spec, pydantic.Tag(kind)] for kind, spec in classes.items()]
    read = pydantic.PlainValidator(partial(_read_registered, family, classes))
    # One choice more, which looks names up, instead of unions that are built again at every
    # registration: seven settings classes contain each other, and each keeps the validators of
    # those inside it.
    choices.append(Annotated[Any, read, pydantic.Tag(_REGISTERED)])

    def choice(value: Any) -> str | None:
        kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
        return kind if kind is None or str(kind) in classes else _REGISTERED

    kind_of = pydantic.Discriminator(
        choice,
        custom_error_type="no_kind",
        custom_error_message="lacks 'kind', which says its kind",
    )
    return Annotated[Union[tuple(choices)], kind_of]  # noqa: UP007  # the members are values


_REGISTERED = "(registered)"


def _read_registered(family: str, own: Mapping[str, Any], value: Any) -> Any:
    plain = isinstance(value, dict)
    spec = open_class(family, str(value["kind"] if plain else value.kind), own)
    # Strict and through JSON, as in `Config.parse`.
    return spec.model_validate_json(json.dumps(value), strict=True) if plain else value


# Choices that settings and specs share. They are here so that the flags of a run load no spec,
# which makes `heedful train --help` 30 ms faster.

PlainActivation = Literal["relu", "gelu", "gelu_tanh", "quick_gelu", "silu"]

Activation = Literal[PlainActivation, "swiglu", "geglu", "geglu_tanh", "reglu"]

GATED: dict[Activation, PlainActivation] = {
    "swiglu": "silu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "reglu": "relu",
}
"""The activation of the gate in each gated form."""

PositionScheme = Literal[
    "sinusoidal",
    "learned",
    "axes",
    "none",
    "rotary",
    "alibi",
    "kerple",
    "t5",
    "relative_keys",
    "transformer_xl",
    "disentangled",
]
"""Position schemes: embeddings, rotary embeddings, or kinds of attention bias."""

ADDED_POSITIONS = ("sinusoidal", "learned", "axes", "none")
"""Position schemes that attention does not know: vectors added to embeddings, or none."""

AnyPositions = Annotated[PositionScheme | str, open_names("position bias", PositionScheme)]
"""A position scheme of the package, or the kind of a registered bias."""

Resampling = Literal["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]

TokenizerKind = Literal["bpe", "byte-bpe", "unigram", "characters"]
TextNormalization = Literal["none", "nfc", "compatibility", "nfc-2", "compatibility-2"]

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
"""Mixers, the parts that exchange information between tokens, by their kinds of part."""

AnyMixer = Annotated[MixerName | str, open_names("mixer", MixerName)]
"""A mixer of the package, or the kind of a registered one."""

Cell = Literal["rnn", "lstm", "gru"]
"""Recurrent cells: Elman 1990, with tanh; Hochreiter and Schmidhuber 1997; Cho 2014."""

Direction = Literal["forward", "backward", "both"]
"""Direction of a recurrent layer. Backward is the reversed source of Sutskever 2014; a layer of
both directions has half of its width for each (Schuster 1997)."""

Feeding = Literal["none", "context", "output"]
"""Additional input of a recurrent decoder's first layer: none; the context vector (Cho 2014;
Bahdanau 2015); the output of the previous step (input feeding, Luong 2015)."""

Readout = Literal["none", "tanh", "maxout"]
"""The output of a recurrent decoder, of state s, token y and context c: s; tanh(W[c; s]) (Luong
2015); the larger of each pair of W[s; y; c] (Goodfellow 2013; Cho 2014; Bahdanau 2015)."""
