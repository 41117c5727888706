"""The two fields of a record that training reads: source and target, or text and label."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from heedful.data.corpus_spec import CorpusSpec
from heedful.errors import DataError

_NAMES_SHOWN = 12


@dataclass(frozen=True)
class RecordFields:
    """The rule by which the two fields of a record are found.

    Args:
        nouns: the two fields, as messages call them.
        usual: pairs of names that are tried, in this order, where none are given.
        keys: names given by the user, such as `translation.en`; None for a name to be found.
        languages: codes of source and target, whose names are tried before the usual ones.
    """

    nouns: tuple[str, str]
    usual: tuple[tuple[str, str], ...]
    keys: tuple[str | None, str | None] = (None, None)
    languages: tuple[str, str] | None = None

    def of(self, spec: CorpusSpec) -> Self:
        """Return the rule for a corpus, with the names and languages that its settings give."""
        keys = (spec.source_key, spec.target_key)
        return replace(self, keys=keys, languages=spec.languages)

    @property
    def columns(self) -> tuple[int, int] | None:
        """Numbers of the columns, from 1, in a table without a header; None for other keys."""
        first, second = self.keys
        if first is None or second is None or not (first.isdecimal() and second.isdecimal()):
            return None
        return int(first), int(second)

    @property
    def reading(self) -> str:
        """The settings of the rule as text, "" without any: part of the hash of a corpus."""
        given = [*self.keys, *(self.languages or ())]
        return " ".join(map(repr, given)) if any(given) else ""

    @property
    def remedy(self) -> str:
        """The expected form of a line, and how other names are given."""
        line = ", ".join(f'"{noun}": "…"' for noun in self.nouns)
        languages = ", languages by --data.languages en de" * ("source" in self.nouns)
        return (
            f"Each line must be an object like {{{line}}}; name other keys by --data.source-key "
            f"and --data.target-key{languages}"
        )

    def find(self, record: Mapping[str, Any]) -> tuple[Any, Any] | None:
        """Return the values of both fields; None where they are not in the record."""
        for names in self._candidates(record):
            values = [_value(record, name) for name in names]
            if None not in values:
                return values[0], values[1]
        # `datasets` nests both sides by language: {"translation": {"de": "…", "en": "…"}}.
        inner = record.get("translation")
        if isinstance(inner, Mapping):
            return self.find(inner)
        lowered = {name.lower(): value for name, value in record.items()}
        return (
            self.find(lowered) if lowered.keys() != record.keys() and not any(self.keys) else None
        )

    def texts(self, record: Any, where: str) -> tuple[str, str]:
        """Return both fields of a record as texts; numbers of labels are written out.

        Args:
            record: mapping from names to values.
            where: file and row, for the error message.

        Raises:
            DataError: when the record is no mapping, or a field is missing or no text; the names
                that were found are listed.
        """
        if not isinstance(record, Mapping):
            raise self._missing(
                f"The line holds {type(record).__name__} instead of an object", where
            )
        found = self.find(record)
        if found is None:
            raise self._missing(self._problem(record), where)
        for noun, value in zip(self.nouns, found, strict=True):
            is_label = noun == "label" and type(value) is int  # True and False are no labels
            if not isinstance(value, str) and not is_label:
                raise self._missing(f"{noun!r} is not text; keys found: {_names(record)}", where)
        return str(found[0]), str(found[1])

    def header(self, cells: Sequence[str]) -> bool:
        """Return True if the first line of a table names its columns."""
        if self.columns is not None:
            return False
        names = [cell.strip() for cell in cells]
        if any(self.keys):
            return True
        if self.find({name: name for name in names}) is not None:
            return True
        return "source" in self.nouns and len(names) == 2 and all(map(_is_language, names))

    def _candidates(self, record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        first, second = self.keys
        if first is not None and second is not None:
            yield first, second
            return
        # Languages come first: `source` is also a usual name for the origin of a pair.
        if self.languages is not None and not any(self.keys):
            source, target = self.languages
            yield _name_of(source, record), _name_of(target, record)
        # One name may be given and the other left to be found.
        yield from ((first or usual[0], second or usual[1]) for usual in self.usual)

    def _problem(self, record: Mapping[str, Any]) -> str:
        names = [key or noun for key, noun in zip(self.keys, self.nouns, strict=True)]
        without = " or ".join(repr(name) for name in names if _value(record, name) is None)
        empty = [name for name in names if name in record and record[name] is None]
        what = f"{empty[0]!r} is not text" if empty else f"There is no {without}"
        return f"{what}; keys found: {_names(record)}"

    def _missing(self, what: str, where: str) -> DataError:
        return DataError(what, where=where, remedy=self.remedy)


PAIR_FIELDS = RecordFields(
    ("source", "target"),
    (
        *(("source", "target"), ("src", "tgt"), ("src", "trg")),
        *(("input", "target"), ("inputs", "targets")),  # as in corpora for T5
    ),
)
"""The rule for sentence pairs."""

LABEL_FIELDS = RecordFields(
    ("text", "label"),
    (
        *itertools.product(("text", "sentence", "content"), ("label", "class", "category")),
        ("txt", "cls"),  # the endings of WebDataset
    ),
)
"""The rule for labelled texts."""


def _value(record: Mapping[str, Any], name: str) -> Any:
    """Return a value by its name, or by a path such as `translation.en`; None without one."""
    if name in record:
        return record[name]
    first, _, rest = name.partition(".")
    inner = record.get(first)
    if rest and isinstance(inner, Mapping):
        return _value(inner, rest)
    return None


def _name_of(language: str, record: Mapping[str, Any]) -> str:
    """Return the name of a language in a record; en also means en_US, en-GB and EN."""
    wanted = re.split("[-_]", language.lower())
    for name in record:
        found = re.split("[-_]", name.lower())
        if found == wanted or (len(wanted) == 1 and found[:1] == wanted and len(found) == 2):
            return name
    return language


def _names(record: Mapping[str, Any]) -> str:
    names: list[str] = []
    for name, value in record.items():
        inner = [f"{name}.{each}" for each in value] if isinstance(value, Mapping) else [name]
        names += map(repr, inner)
    return ", ".join(names[:_NAMES_SHOWN]) + ", …" * (len(names) > _NAMES_SHOWN) or "none"


def _is_language(name: str) -> bool:
    """Return True for an English name of a language; codes such as `is` are words, too."""
    from babel import Locale

    return name in Locale("en").languages.values()
