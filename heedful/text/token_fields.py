"""Fields of token sequences: what an image, a melody or an episode consists of. No torch here.

A sequence is a record of fields in a fixed order, such as a label and the pixels of an image. A
field holds numbers, names or a text; its shape, if it has one, is the same in every record.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from heedful.config import Config, PositiveInt
from heedful.errors import ConfigError

Content = Literal["numbers", "names", "text"]

_FORM = "NAME:CONTENT[:SHAPE][:given], such as pixels:16:28x28 or caption:text:12:given"
_NAME = re.compile(r"[A-Za-z_][\w-]*")


class TokenField(Config):
    """A field of a record.

    The values of numbers are 0 to `size` − 1. Those of names are texts out of a list, such as notes
    or actions; of a text they are the tokens of a tokenizer.
    """

    name: Annotated[str, Field(pattern=_NAME.pattern)]
    content: Content
    size: PositiveInt | None = Field(None, description="number of different values")
    names: tuple[str, ...] | None = Field(None, description="names in the order of their values")
    shape: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] | None = Field(
        None, description="sizes of the axes; any length if unset"
    )
    given: bool = Field(False, description="condition that the model reads and does not learn")

    @model_validator(mode="after")
    def _values_are_known(self) -> Self:
        if self.content == "text" and self.shape is not None and len(self.shape) > 1:
            raise ValueError("a text has one axis, its length")
        if self.names is not None and self.size != len(self.names):
            raise ValueError("there is one name for each value")
        return self

    @property
    def count(self) -> int | None:
        """Number of values in every record; None if it differs."""
        return None if self.shape is None else math.prod(self.shape)

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a field as it stands in settings: name, content, shape and condition.

        Args:
            text: such as `pixels:16:28x28`, `caption:text:12:given`, `notes:names`; `any` and
                nothing stand for any length.

        Raises:
            ConfigError: when the text is no field.
        """
        name, *parts = text.split(":")
        given = bool(parts) and parts[-1] == "given"
        if given:
            parts.pop()
        shape = parts[1] if len(parts) > 1 else "any"
        is_size = bool(parts) and parts[0].isdecimal() and int(parts[0]) > 0
        known = bool(parts) and (is_size or parts[0] in ("names", "text"))
        is_shape = shape == "any" or re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape)
        if not (_NAME.fullmatch(name) and known and is_shape and len(parts) <= 2):
            raise ConfigError(
                f"{text!r} is no field of a sequence",
                where="tokens.fields",
                remedy=f"Write {_FORM}. CONTENT is a number of values, names or text",
            )
        return cls.parse(
            {
                "name": name,
                "content": "numbers" if is_size else parts[0],
                "size": int(parts[0]) if is_size else None,
                "shape": None if shape == "any" else tuple(map(int, shape.split("x"))),
                "given": given,
            }
        )

    def write(self) -> str:
        """Return the text that `read` reads."""
        content = str(self.size) if self.content == "numbers" else self.content
        shape = "any" if self.shape is None else "x".join(map(str, self.shape))
        return f"{self.name}:{content}:{shape}" + ":given" * self.given


def read_fields(texts: tuple[str, ...]) -> tuple[TokenField, ...]:
    """Read the fields of settings.

    Raises:
        ConfigError: when a text is no field, two have one name, or nothing is learned.
    """
    fields = tuple(map(TokenField.read, texts))
    names = [field.name for field in fields]
    if double := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"Two fields are called {double!r}", where="tokens.fields")
    if fields and all(field.given for field in fields):
        raise ConfigError(
            "All fields are given, so there is nothing to learn",
            where="tokens.fields",
            remedy="Take ':given' away from one of them",
        )
    return fields
