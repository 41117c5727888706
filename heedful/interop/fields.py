"""Reading another project's config.json: every value typed, every mistake named."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import pydantic

from heedful.errors import ModelError, suggest
from heedful.nn.kinds import Activation

T = TypeVar("T")

ACTIVATIONS: Mapping[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
"""Their names of the activations without a gate. Several of theirs are one of ours."""

ACTIVATION_NAMES: Mapping[Activation, str] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_tanh": "gelu_new",
    "silu": "silu",
}
"""Our names to the one of theirs that an export writes."""


class Fields:
    """A config.json, or a table in it. A key that is missing and one that is null are the same.

    Args:
        config: its content.
        where: the file, and the key of the table in it, for error messages.
    """

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config = config
        self.where = where

    def has(self, key: str) -> bool:
        """Whether there is a value."""
        return self._config.get(key) is not None

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number.

        Args:
            key: its name.
            default: what a file without it means; without a default it is required.

        Raises:
            ModelError: when it is required and missing, or no whole number.
        """
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(key, "a whole number is needed")
        return value

    def optional_integer(self, key: str) -> int | None:
        """A whole number, or None where there is none.

        Raises:
            ModelError: when it is something else.
        """
        return self.integer(key) if self.has(key) else None

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number; see `integer`.

        Raises:
            ModelError: when it is required and missing, or no finite number.
        """
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a number is needed")
        if not math.isfinite(value):
            raise self.wrong(key, "a finite number is needed")
        return float(value)

    def optional_number(self, key: str) -> float | None:
        """A finite number, or None where there is none.

        Raises:
            ModelError: when it is something else.
        """
        return self.number(key) if self.has(key) else None

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false; see `integer`.

        Raises:
            ModelError: when it is required and missing, or neither.
        """
        value = self._required(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false is needed")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string; see `integer`.

        Raises:
            ModelError: when it is required and missing, or no string.
        """
        value = self._required(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a text is needed")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings; empty where there is none.

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
        """The table under a key; None where there is none.

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
        """What one of their names means here.

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
        """Say that a setting has no counterpart here, unless it has one of the values that do.

        Args:
            key: the setting.
            allowed: the values that mean what is done here anyway.
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
        """The names of the classes, in the order of their ids, from `id2label`.

        `num_labels` alone gives LABEL_0, LABEL_1 …, which are the usual names for classes without;
        a file with neither has two.

        Raises:
            ModelError: when the ids are not 0, 1, 2 ….
        """
        names = self._config.get("id2label")
        if names is None:
            return tuple(f"LABEL_{i}" for i in range(self.integer("num_labels", 2)))
        if not isinstance(names, Mapping):
            raise self.wrong("id2label", "a table is needed")
        by_id = {str(id): str(name) for id, name in names.items()}
        if by_id.keys() != {str(id) for id in range(len(by_id))}:
            raise self.wrong("id2label", "its keys must be 0, 1, 2 …")
        return tuple(by_id[str(id)] for id in range(len(by_id)))

    def wrong(self, key: str, why: str, remedy: str | None = None) -> ModelError:
        """The error about a value, to be raised."""
        return ModelError(
            f"{key} = {_show(self._config.get(key))}: {why}",
            where=self.where,
            remedy=remedy or "Only models that are computed as Heedful does can be imported",
        )

    def _required(self, key: str, default: object) -> Any:
        value = self._config.get(key)
        value = default if value is None else value
        if value is None:
            raise ModelError(
                f"{key} is missing",
                where=self.where,
                remedy="Check that this is the config.json of such a model, whole",
            )
        return value


@contextmanager
def sizes_checked(where: str) -> Iterator[None]:
    """Tell of sizes that cannot be, while a spec is built of them.

    Args:
        where: the file they are from.

    Raises:
        ModelError: naming the first that is wrong.
    """
    try:
        yield
    except pydantic.ValidationError as error:
        found = error.errors()[0]
        place = ".".join(map(str, found["loc"])) or error.title
        raise ModelError(
            f"The settings do not fit together ({place}: {found['msg']})",
            where=where,
            remedy="Check that this is the config.json of such a model, unchanged",
        ) from None


def _show(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."
