"""Example sentences of pages, from a model's card, its data or the course's documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from heedful.data.record_files import record_reader
from heedful.data.text_file import TextFile
from heedful.errors import DataError, UserError

RECORDS = "records"
"""Kind of a language model of records, which no page of texts takes."""
SOUNDS = "sounds"
"""Kind of a vision model at hand of the pictures of sounds."""

SENTENCES = (
    "The cat sat on the mat because it was tired.",
    "The animal didn't cross the street because it was too tired.",
    "The animal didn't cross the street because it was too wide.",
    "I love cats.",
    "I saw the man with the telescope.",
    "The bank is closed today.",
    "She sat on the bank of the river.",
)
"""Sentences of the documents that the course is based on."""

BY_KIND: dict[str | None, tuple[str, ...]] = {
    "translator": SENTENCES,
    "causal_lm": ("Once upon a time there was", "The cat sat on the mat because"),
    "encoder": SENTENCES,
}
_OF_DATA = 4
_MEASURED = 60
_LONGEST = 160
"""Maximum number of characters of an example line."""


def examples_of(kind: str | None, settings: Any | None) -> list[dict[str, str]]:
    """Return examples for a model as JSON data, the most fitting first.

    Args:
        kind: kind of the model.
        settings: `RunSettings` of the model's run, whose validation data are read; None without a
            run.
    """
    found = _records if kind == RECORDS else _fitting
    lines = [] if settings is None else list(islice(found(settings), _OF_DATA))
    examples = [{"text": line, "about": "from the validation data"} for line in lines]
    return examples + [{"text": each, "about": ""} for each in BY_KIND.get(kind, ())]


def sentences_of(settings: Any) -> list[str]:
    """Return the first sentences of a run's validation data, to measure heads on.

    Args:
        settings: `RunSettings` of the run.
    """
    return list(islice(_fitting(settings), _MEASURED))


def _records(settings: Any) -> Iterator[str]:
    """Yield records of the validation data as lines of JSON; nothing if they cannot be read."""
    names = [field.partition(":")[0] for field in settings.tokens.fields]
    try:
        for corpus in settings.data.valid:
            for _, record in record_reader(corpus, settings.tokens).records():
                known = {name: record[name] for name in names or record if name in record}
                yield json.dumps(known)
    except UserError:
        return


def _fitting(settings: Any) -> Iterator[str]:
    seen: set[str] = set()
    for corpus in settings.data.valid:
        for line in _lines(Path(corpus.source or corpus.file)):
            if line and line not in seen and len(line) <= _LONGEST:
                seen.add(line)
                yield line


def _lines(path: Path) -> Iterator[str]:
    """Yield the sources of a file; nothing if it is missing or unreadable."""
    try:
        if path.is_file():
            for line in islice(TextFile(path), 200):
                if ".jsonl" in path.name:
                    fields = json.loads(line)
                    yield str(fields.get("source") or fields.get("text") or "").strip()
                else:
                    yield line.partition("\t")[0].strip()
    except (DataError, ValueError, AttributeError):
        return
