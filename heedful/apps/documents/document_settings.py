"""Settings of a document: the text to translate, and how it is split into sentences."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from heedful.config import Config

Split = Literal["sentences", "passages", "lines"]
Name = Annotated[str, Field(min_length=1)]


class DocumentSettings(Config):
    """Settings that select the text of a document and split it into pieces."""

    split: Split = Field(
        "sentences",
        description="unit that is translated at a time: sentences, passages (paragraphs, table "
        "cells) or the lines of plain text",
    )
    language: Name = Field(
        "en", description="language code of the document, for splitting it into sentences"
    )
    target_language: Name | None = Field(
        None,
        description="language code of the translation, for TMX, TBX and .xcstrings, which hold "
        "several languages; that of the model if unset",
    )
    keys: tuple[Name, ...] = Field(
        (),
        description="values of JSON, YAML and catalogues of strings to translate, by their last "
        "key (title) or their whole path (items.*.title, with ** for any number of keys); all "
        "strings if unset",
    )
    columns: tuple[Name, ...] = Field(
        (),
        description="columns to translate of CSV and TSV files, by name or number from 1; required",
    )
    header: bool = Field(True, description="treat the first row of CSV and TSV as column names")
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = Field(
        None,
        description="character between the cells of CSV; if unset, the comma, semicolon or tab "
        "that is most frequent in the first row",
    )
    mark_machine: bool = Field(
        False,
        description="mark translations as made by a machine: as fuzzy in PO, by the state "
        "needs-review-translation in XLIFF, or needs_review in .xcstrings",
    )
    encoding: Name | None = Field(
        None, description="character encoding of documents that do not declare one; UTF-8 if unset"
    )


SETTINGS = DocumentSettings()
