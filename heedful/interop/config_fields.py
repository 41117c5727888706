"""Typed access to another project's config.json, with an error that names every mistake."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pydantic

from heedful.errors import ModelError, suggest
from heedful.nn.spec import Activation

T = TypeVar("T")

_MAX_LABELS = 1_000_000  # each gets a name of its own

ACTIVATIONS: Mapping[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
"""Their names of the activations without a gate to ours; several of theirs are one of ours."""

ACTIVATION_NAMES: Mapping[Activation, str] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "silu": "silu",
}
"""Our names to the one of theirs that an export writes."""


class Fields:
    """A config.json, or a table in it; a missing key and one that is null are the same.

    Args:
        config: its content.
        where: the file, and the key of the table in it, for error messages.
    """

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config = config
        self.where = where

    def get(self, key: str) -> Any:
        """Return the value as it stands in the file; None where there is none."""
        return self._config.get(key)

    def has(self, key: str) -> bool:
        """Return whether there is a value."""
        return self.get(key) is not None

    def is_null(self, key: str) -> bool:
        """Return whether the file says null, where its absence means something else."""
        return key in self._config and self._config[key] is None

    def integer(self, key: str, default: int | None = None) -> int:
        """Return a whole number.

        Args:
            key: its name.
            default: what a file without it means; without a default it is required.

        Raises:
            ModelError: when it is required and missing, or no whole number.
        """
        return int(self._typed(key, default, int, "a whole number is needed"))

    def optional_integer(self, key: str) -> int | None:
        """Return a whole number, or None where there is none; see `integer`."""
        return self.integer(key) if self.has(key) else None

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number; see `integer`."""
        value = float(self._typed(key, default, int | float, "a number is needed"))
        if not math.isfinite(value):
            raise self.wrong(key, "a finite number is needed")
        return value

    def optional_number(self, key: str) -> float | None:
        """Return a finite number, or None where there is none; see `integer`."""
        return self.number(key) if self.has(key) else None

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Return true or false; see `integer`."""
        return bool(self._typed(key, default, bool, "true or false is needed"))

    def text(self, key: str, default: str | None = None) -> str:
        """Return a string; see `integer`."""
        return str(self._typed(key, default, str, "a text is needed"))

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of strings; empty where there is none.

        Raises:
            ModelError: when it is something else.
        """
        value = self._config.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "a list of texts is needed")
        return tuple(value)

    def table(self, key: str) -> Fields | None:
        """Return the table under a key, or None where there is none.

        Raises:
            ModelError: when it is no table.
        """
        value = self._config.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(key, "a table is needed")
        return Fields(value, f"{self.where}, {key}")

    def choice(self, key: str, mapping: Mapping[str, T], default: str | None = None) -> T:
        """Return our value for one of their names.

        Args:
            key: the setting.
            mapping: their names to ours.
            default: their name that a file without the setting means.

        Raises:
            ModelError: when it is required and missing, or not one of these names.
        """
        value = self.text(key, default)
        if value not in mapping:
            raise self.wrong(key, "this is not known", suggest(value, mapping))
        return mapping[value]

    def refuse_unless(self, key: str, allowed: Collection[object], default: object) -> None:
        """Refuse a setting unless it has a value that means what is done here anyway.

        Args:
            key: the setting.
            allowed: these values.
            default: the value that a file without the setting means; None is what null means.

        Raises:
            ModelError: when it has another value.
        """
        value = self._config.get(key)
        value = default if value is None else value
        # 1 equals True in Python and does not in a configuration.
        if not any(value == item and type(value) is type(item) for item in allowed):
            known = " or ".join(_show(item) for item in allowed)
            raise self.wrong(key, f"Heedful reads such models only with {known}")

    def labels(self) -> tuple[str, ...]:
        """Return the names of the classes, in the order of their ids, from `id2label`.

        `num_labels` alone gives LABEL_0, LABEL_1 …, which are the usual names for classes without;
        a file with neither has two.

        Raises:
            ModelError: when the ids are not 0, 1, 2 ….
        """
        names = self._config.get("id2label")
        if names is None:
            count = self.integer("num_labels", 2)
            if count > _MAX_LABELS:
                raise self.wrong("num_labels", f"at most {_MAX_LABELS} can be without names")
            return tuple(f"LABEL_{i}" for i in range(count))
        if not isinstance(names, Mapping):
            raise self.wrong("id2label", "a table is needed")
        by_id = {str(id): str(name) for id, name in names.items()}
        if by_id.keys() != {str(id) for id in range(len(by_id))}:
            raise self.wrong("id2label", "its keys must be 0, 1, 2 …")
        return tuple(by_id[str(id)] for id in range(len(by_id)))

    def wrong(self, key: str, why: str, remedy: str | None = None) -> ModelError:
        """Return the error about a value, to be raised."""
        return ModelError(
            f"{key} = {_show(self._config.get(key))}: {why}",
            where=self.where,
            remedy=remedy or "Only models that are computed as Heedful does can be imported",
        )

    def _typed(self, key: str, default: object, kind: Any, needed: str) -> Any:
        value = self._config.get(key)
        value = default if value is None else value
        if value is None:
            raise ModelError(
                f"{key} is missing",
                where=self.where,
                remedy="Check that this is the config.json of such a model, whole",
            )
        # In Python true and false are whole numbers too.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(key, needed)
        return value


def write_labels(labels: Sequence[str]) -> dict[str, Any]:
    """Return the settings that name the classes; `Fields.labels` reads them."""
    return {
        "id2label": {str(id): label for id, label in enumerate(labels)},
        "label2id": {label: id for id, label in enumerate(labels)},
    }


@contextmanager
def sizes_checked(where: str) -> Iterator[None]:
    """Turn pydantic's error about a spec built inside into ours, which names the file.

    Args:
        where: the file they are from.

    Raises:
        ModelError: naming the first that is wrong.
    """
    try:
        yield
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or error.title
        raise ModelError(
            f"The settings do not fit together ({place}: {first['msg']})",
            where=where,
            remedy="Check that this is the config.json of such a model, unchanged",
        ) from None


def _show(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
