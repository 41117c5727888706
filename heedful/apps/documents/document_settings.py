"""Settings of a document: what in it is text, and where sentences end."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from heedful.config import Config

Split = Literal["sentences", "passages", "lines"]
Name = Annotated[str, Field(min_length=1)]


class DocumentSettings(Config):
    """The text of a document that is translated, and its pieces."""

    split: Split = Field(
        "sentences",
        description="what is translated at once: sentences, whole passages (paragraphs, cells, "
        "…), or in plain text the lines",
    )
    language: Name = Field(
        "en", description="language code of the document, for the ends of its sentences"
    )
    keys: tuple[Name, ...] = Field(
        (),
        description="JSON: values to translate, by the last key of their path (title), or by all "
        "of it (items.*.title; ** is any number of keys); all strings if unset",
    )
    columns: tuple[Name, ...] = Field(
        (), description="CSV and TSV: columns to translate, by name, or by number from 1"
    )
    header: bool = Field(True, description="CSV and TSV: the first row has the names of columns")
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = Field(
        None, description="CSV: between cells; a comma, semicolon or tab by the first row if unset"
    )
    encoding: Name | None = Field(
        None, description="of the document, where neither it nor its byte order mark says; UTF-8"
    )


SETTINGS = DocumentSettings()
