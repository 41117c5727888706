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
    shape: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = Field(
        (0,), description="sizes of the axes; a first one of 0 has any size"
    )
    given: bool = Field(False, description="condition that the model reads and does not learn")

    @model_validator(mode="after")
    def _values_are_known(self) -> Self:
        if self.content == "text" and len(self.shape) > 1:
            raise ValueError("a text has one axis, its length")
        if 0 in self.shape[1:]:
            raise ValueError("only the first axis may have any size")
        if self.names is not None and self.size != len(self.names):
            raise ValueError("there is one name for each value")
        return self

    @property
    def count(self) -> int | None:
        """Number of values in every record; None if it differs."""
        return math.prod(self.shape) or None

    @property
    def step(self) -> int:
        """Number of values of a row along the first axis."""
        return math.prod(self.shape[1:])

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a field as it stands in settings: name, content, shape and condition.

        Args:
            text: such as `pixels:16:28x28`, `caption:text:12:given` or `notes:60:anyx4`; `any`
                stands for any number of rows or values, and so does nothing.

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
        is_shape = re.fullmatch(r"(any|[1-9]\d*)(x[1-9]\d*)*", shape)
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
                "shape": tuple(map(int, shape.replace("any", "0").split("x"))),
                "given": given,
            }
        )

    def write(self) -> str:
        """Return the text that `read` reads."""
        content = str(self.size) if self.content == "numbers" else self.content
        shape = "x".join(str(size or "any") for size in self.shape)
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
