"""Typed access to the fields of a config.json, with errors that name the file and the field."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pydantic

from heedful.config import Activation
from heedful.errors import ModelError

T = TypeVar("T")

# A damaged `num_labels` must not make billions of names.
_MAX_LABELS = 1_000_000
_MAX_SHOWN = 4

ACTIVATIONS: Mapping[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    # Three spellings of one tanh approximation (Hendrycks 2016), equal up to rounding.
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
}
"""Activations without a gate by the names of transformers."""

ACTIVATION_NAMES: Mapping[Activation, str] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
}
"""Names that exports write for activations without a gate."""


class Fields:
    """Fields of a config.json or of a table in it; null counts as a missing field.

    They remember which of them were asked for, so that a setting nobody reads can be refused.

    Args:
        config: content of the file or table.
        where: name of the file and key of the table, for error messages.
    """

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config = config
        self._read: set[str] = set()
        self._tables: dict[str, Fields] = {}
        self.where = where

    def get(self, key: str) -> Any:
        """Return the raw value of a field; None if it is missing."""
        self._read.add(key)
        return self._config.get(key)

    def ignore(self, *keys: str) -> None:
        """Count fields as read that another field has put out of effect."""
        self._read.update(keys)

    def check_aliases(self, **names: str) -> None:
        """Raise a `ModelError` if a field's second name in their classes has another value.

        Args:
            names: name of the field by the second name.
        """
        for alias, key in names.items():
            if self.has(alias) and self.get(alias) != self.get(key):
                raise self.wrong(alias, f"{key} is {_show(self.get(key))}, and the two are one")

    def unread(self, without_effect: Callable[[str, Any], bool]) -> list[str]:
        """Return the names of fields that were never asked for; see `refuse_unread`."""
        return [
            key
            for key, value in self._config.items()
            if key not in self._read and value is not None and not without_effect(key, value)
        ]

    def refuse_unread(self, without_effect: Callable[[str, Any], bool]) -> None:
        """Raise a `ModelError` about fields that were never asked for, tables included.

        Args:
            without_effect: function from key and value to True for a field that changes nothing.
        """
        unread = [f"{key} = {_show(self._config[key])}" for key in self.unread(without_effect)]
        if unread:
            more = f" and {len(unread) - _MAX_SHOWN} more" if len(unread) > _MAX_SHOWN else ""
            raise ModelError(
                f"{', '.join(unread[:_MAX_SHOWN])}{more}: Heedful does not know what this changes "
                "in the model",
                where=self.where,
                remedy="Check that model_type names the architecture of these weights; "
                "docs/guides/other-models.md lists what is read",
            )
        for table in self._tables.values():
            table.refuse_unread(without_effect)

    def has(self, key: str) -> bool:
        """Return True if a field has a value other than null."""
        return self.get(key) is not None

    def is_null(self, key: str) -> bool:
        """Return True if a field is null, for fields whose absence means something else."""
        return key in self._config and self.get(key) is None

    def integer(self, key: str, default: int | None = None) -> int:
        """Return an integer field.

        Args:
            key: name of the field.
            default: value of a missing field; None for a required field.

        Raises:
            ModelError: when a required field is missing, or the value is not an integer.
        """
        return int(self._typed(key, default, int, "a whole number is needed"))

    def optional_integer(self, key: str) -> int | None:
        """Return an integer field, or None if it is missing; see `integer`."""
        return self.integer(key) if self.has(key) else None

    def number(self, key: str, default: float | None = None) -> float:
        """Return a field with a finite number; see `integer`."""
        value = float(self._typed(key, default, int | float, "a number is needed"))
        # Python's JSON reader accepts NaN and Infinity, which no setting means.
        if not math.isfinite(value):
            raise self.wrong(key, "a finite number is needed")
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return a boolean field; see `integer`."""
        return bool(self._typed(key, default, bool, "true or false is needed"))

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string field; see `integer`."""
        return str(self._typed(key, default, str, "a text is needed"))

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings, empty for a missing field; raise a `ModelError` for others."""
        value = self.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "a list of texts is needed")
        return tuple(value)

    def table(self, key: str) -> Fields | None:
        """Return the table under a key, None if missing; raise a `ModelError` for other values."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(key, "a table is needed")
        return self._tables.setdefault(key, Fields(value, f"{self.where}, {key}"))

    def choice(self, key: str, mapping: Mapping[str, T], default: str | None = None) -> T:
        """Return our value for one of their names.

        Args:
            key: name of the field.
            mapping: our values by their names.
            default: their name that a missing field means; None for a required field.

        Raises:
            ModelError: when a required field is missing, or the value is not one of the names.
        """
        value = self.text(key, default)
        if value not in mapping:
            # No "did you mean": the person wrote no such file, and another value is another model.
            raise self.wrong(key, f"Heedful knows {', '.join(mapping)}")
        return mapping[value]

    def refuse_unless(self, key: str, allowed: Collection[object], default: object) -> None:
        """Raise a `ModelError` unless a field, or the default of a missing one, is allowed."""
        value = self.get(key)
        value = default if value is None else value
        # In Python 1 == True, but a file that says 1 for a flag was not written by transformers.
        if not any(value == item and type(value) is type(item) for item in allowed):
            known = " or ".join(_show(item) for item in allowed)
            raise self.wrong(key, f"Heedful reads such models only with {known}")

    def labels(self) -> tuple[str, ...]:
        """Return the names of the classes in the order of their ids, from `id2label`.

        With `num_labels` alone they are LABEL_0, LABEL_1 …, the names that transformers gives; a
        file with neither field has two classes.

        Raises:
            ModelError: when the ids are not 0, 1, 2 ….
        """
        names = self.get("id2label")
        if names is None:
            count = self.integer("num_labels", 2)
            if count > _MAX_LABELS:
                raise self.wrong("num_labels", f"at most {_MAX_LABELS} can be without names")
            return tuple(f"LABEL_{i}" for i in range(count))
        if not isinstance(names, Mapping):
            raise self.wrong("id2label", "a table is needed")
        # JSON has string keys only, so ids come as "0", "1", in any order.
        by_id = {str(id): str(name) for id, name in names.items()}
        if by_id.keys() != {str(id) for id in range(len(by_id))}:
            raise self.wrong("id2label", "its keys must be 0, 1, 2 …")
        return tuple(by_id[str(id)] for id in range(len(by_id)))

    def wrong(self, key: str, why: str, remedy: str | None = None) -> ModelError:
        """Return an error about the value of a field; the caller raises it."""
        return ModelError(
            f"{key} = {_show(self._config.get(key))}: {why}",
            where=self.where,
            remedy=remedy or "Only models that are computed as Heedful does can be imported",
        )

    def _typed(self, key: str, default: object, kind: Any, needed: str) -> Any:
        value = self.get(key)
        value = default if value is None else value
        if value is None:
            raise ModelError(
                f"{key} is missing",
                where=self.where,
                remedy="Check that this is the config.json of such a model, whole",
            )
        # bool is a subclass of int, so `true` would pass for the number 1.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(key, needed)
        return value


def write_labels(labels: Sequence[str]) -> dict[str, Any]:
    """Return the fields with the names of classes, from which `Fields.labels` reads them."""
    return {
        "id2label": {str(id): label for id, label in enumerate(labels)},
        # This field is not read here, but pipelines of transformers look names up in it.
        "label2id": {label: id for id, label in enumerate(labels)},
    }


@contextmanager
def sizes_checked(where: str) -> Iterator[None]:
    """A context that turns pydantic's first error about a spec into a `ModelError`."""
    try:
        yield
    except pydantic.ValidationError as error:
        # Only the first error is reported: the others are mostly its consequences.
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or error.title
        raise ModelError(
            f"The settings do not fit together ({place}: {first['msg']})",
            where=where,
            remedy="Check that this is the config.json of such a model, unchanged",
        ) from None


def _show(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    # A value may be a whole vocabulary.
    return text if len(text) <= 80 else text[:77] + "..."
