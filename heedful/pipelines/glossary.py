"""Glossaries: terms that must be translated as given, found in sources and required in outputs.

A glossary is a text file of two or three columns with tabs between them:

    bicycle      Fahrrad
    bank         Bank | Kreditinstitut
    Heedful                               keep
    user guide   Handbuch                 ignore-case

A term is found where it stands as whole words; of several that begin at one place, the longest.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from heedful.durable import decode_line, open_regular
from heedful.errors import DataError
from heedful.search.phrase_automaton import RequiredPhrase
from heedful.text.inline_terms import InlineTerm
from heedful.text.pretokenization import is_spaceless
from heedful.text.tokenizer import TextTokenizer

_FLAGS = ("ignore-case", "keep")
_BETWEEN_TARGETS = "|"
_WORDS = re.compile(r"\w+|[^\w\s]")
_FORM = "Write a line as: source, tab, target (or several, with | between), tab, flags"


@dataclass(frozen=True)
class Term:
    """A term of a glossary.

    Args:
        source: words of the source language, with single spaces.
        targets: translations, any of which serves; the source itself if it is to be kept.
        ignore_case: found in upper and lower case alike.
        line: number of its line in the file; 0 if it is from none.
    """

    source: str
    targets: tuple[str, ...]
    ignore_case: bool = False
    line: int = 0

    @property
    def name(self) -> str:
        """The term for people, such as "bank → Bank | Kreditinstitut"."""
        return f"{self.source} → {f' {_BETWEEN_TARGETS} '.join(self.targets)}"


@dataclass(frozen=True)
class Occurrence:
    """A term in a text.

    Args:
        term: the term.
        start, end: the first character and the one after the last.
    """

    term: Term
    start: int
    end: int


class Glossary:
    """Terms, found in texts as whole words.

    Args:
        terms: terms of one source are alternatives to each other.
        name: file, for errors.
        is_soft: translations are written into the source, for a model that learned to use them
            (`heedful train --soft-terms`), instead of required.
    """

    def __init__(
        self, terms: Sequence[Term], name: str = "glossary", *, is_soft: bool = False
    ) -> None:
        self.name = name
        self.is_soft = is_soft
        merged: dict[tuple[str, bool], Term] = {}
        for term in terms:
            key = (_folded(term.source) if term.ignore_case else term.source, term.ignore_case)
            other = merged.setdefault(key, term)
            targets = tuple(dict.fromkeys((*other.targets, *term.targets)))
            merged[key] = Term(other.source, targets, other.ignore_case, other.line)
        self.terms = tuple(merged.values())
        self._by_first: dict[str, list[tuple[list[str], Term]]] = defaultdict(list)
        for term in self.terms:
            words = [
                _folded(text[start:end]) for text in [term.source] for start, end in _words(text)
            ]
            self._by_first[words[0]].append((words, term))
        for row in self._by_first.values():
            row.sort(key=lambda item: -len(item[0]))

    def __len__(self) -> int:
        return len(self.terms)

    @classmethod
    def read(cls, path: str | Path, *, soft: bool = False) -> Self:
        """Read a file.

        Args:
            path: text in UTF-8: columns with tabs between them, see above. A first line "source,
                target" or "source, target, flags" is a heading.
            soft: see `is_soft`.

        Raises:
            DataError: naming the line that is no term.
        """
        try:
            with open_regular(Path(path)) as file:
                lines = file.read().split(b"\n")
        except OSError as error:
            raise DataError(
                f"The glossary cannot be read: {error.strerror or error}",
                where=str(path),
                remedy="Check the path",
            ) from None
        terms: list[Term] = []
        for number, line in enumerate(lines, start=1):
            text = decode_line(line, number, str(path))
            columns = [" ".join(column.split()) for column in text.split("\t")]
            heading = number == 1 and [c.lower() for c in columns[:2]] == ["source", "target"]
            if any(columns) and not heading:
                terms.append(_term(columns, number, str(path)))
        if not terms:
            raise DataError("The glossary has no terms", where=str(path), remedy=_FORM)
        return cls(terms, str(path), is_soft=soft)

    def find(self, text: str) -> list[Occurrence]:
        """Find the terms in a text, from left to right; none overlap."""
        spans = _words(text)
        words = [_folded(text[start:end]) for start, end in spans]
        found: list[Occurrence] = []
        place = 0
        while place < len(words):
            term = self._longest(text, spans, words, place)
            if term is None:
                place += 1
                continue
            count, chosen = term
            found.append(Occurrence(chosen, spans[place][0], spans[place + count - 1][1]))
            place += count
        return found

    def _longest(
        self, text: str, spans: Sequence[tuple[int, int]], words: Sequence[str], place: int
    ) -> tuple[int, Term] | None:
        """The longest term that begins with a word, and its number of words."""
        for own, term in self._by_first.get(words[place], ()):
            count = len(own)
            if list(words[place : place + count]) != own:
                continue
            found = " ".join(text[spans[place][0] : spans[place + count - 1][1]].split())
            if term.ignore_case and _folded(found) == _folded(term.source):
                return count, term
            # A sentence begins with a capital letter that the word has nowhere else.
            if found == term.source or (place == 0 and found == _capitalized(term.source)):
                return count, term
        return None

    def check(self, tokenizer: TextTokenizer) -> None:
        """Refuse targets that a model cannot write.

        Args:
            tokenizer: of the target.

        Raises:
            DataError: naming the line.
        """
        for term in self.terms:
            for target in term.targets:
                ids = tokenizer.encode(target)
                if not ids or tokenizer.unk in ids:
                    raise DataError(
                        f"The model's vocabulary cannot spell {target!r}",
                        where=f"{self.name}:{term.line}" if term.line else self.name,
                        remedy="Take the term out, or use a model trained on text that has its "
                        "characters (a byte-bpe tokenizer has all)",
                    )

    def phrases(self, text: str, tokenizer: TextTokenizer) -> tuple[RequiredPhrase, ...]:
        """The phrases that a translation must contain, one for each term found; none if soft.

        Args:
            text: of the source.
            tokenizer: of the target.
        """
        if self.is_soft:
            return ()
        phrases: list[RequiredPhrase] = []
        for found in self.find(text):
            targets = list(found.term.targets)
            if not _WORDS.search(text[: found.start]):
                targets += map(_capitalized, found.term.targets)
            spaced = found.start == 0 or text[found.start - 1].isspace()
            alternatives = dict.fromkeys(
                ids
                for target in targets
                for ids in spellings(target, tokenizer, spaced=spaced)
                if ids and tokenizer.unk not in ids
            )
            phrases.append(RequiredPhrase(tuple(alternatives), name=found.term.name))
        return tuple(phrases)

    def inline(self, text: str) -> list[InlineTerm]:
        """The translations to write into a text, the first of each term's; none unless soft."""
        if not self.is_soft:
            return []
        return [InlineTerm(one.start, one.end, one.term.targets[0]) for one in self.find(text)]

    def agreed(self, source: str, target: str) -> list[InlineTerm]:
        """The terms of a pair's source that are translated by one of their targets.

        Targets are found as whole words, the first of several that are there; no word is part of
        the translations of two terms.

        Args:
            source: of the pair.
            target: its translation.
        """
        found = self.find(source)
        if not found:
            return []
        words: list[str | None] = [target[start:end] for start, end in _words(target)]
        agreed: list[InlineTerm] = []
        for one in found:
            for form in one.term.targets:
                own = [form[start:end] for start, end in _words(form)]
                place = _place_of(own, words)
                if place is not None:
                    words[place : place + len(own)] = [None] * len(own)
                    agreed.append(InlineTerm(one.start, one.end, form))
                    break
        return agreed


def _place_of(own: Sequence[str], words: Sequence[str | None]) -> int | None:
    """The place of words among others; a sentence may begin with a capital letter."""
    if own and list(words[: len(own)]) == [_capitalized(own[0]), *own[1:]]:
        return 0
    for place in range(len(words) - len(own) + 1):
        if words[place] == own[0] and list(words[place : place + len(own)]) == own:
            return place
    return None


def spellings(text: str, tokenizer: TextTokenizer, *, spaced: bool) -> list[tuple[int, ...]]:
    """Token ids of a phrase where a word begins, and after a sign without space unless spaced."""
    ids = [tuple(tokenizer.encode(text))]
    if not spaced:
        sign = tokenizer.encode("(")
        after = tokenizer.encode(f"({text}")
        if after[: len(sign)] == sign:
            ids.append(tuple(after[len(sign) :]))
    return ids


def _term(columns: Sequence[str], number: int, file: str) -> Term:
    where = f"{file}:{number}"
    if len(columns) > 3 and any(columns[3:]):
        raise DataError(f"{len(columns)} columns where 3 are known", where=where, remedy=_FORM)
    source, target, flags = (*columns, "", "")[:3]
    names = flags.replace(",", " ").split()
    unknown = [name for name in names if name not in _FLAGS]
    if unknown:
        raise DataError(
            f"There is no flag {unknown[0]!r}",
            where=where,
            remedy=f"The flags are {' and '.join(_FLAGS)}",
        )
    if not source:
        raise DataError("There is no source", where=where, remedy=_FORM)
    targets = tuple(filter(None, (part.strip() for part in target.split(_BETWEEN_TARGETS))))
    if "keep" in names:
        if targets not in ((), (source,)):
            raise DataError(
                "A term that is kept has no other translation",
                where=where,
                remedy="Leave the target empty, or the flag keep out",
            )
        targets = (source,)
    if not targets:
        raise DataError(
            "There is no target", where=where, remedy=f"{_FORM}; the flag keep copies the source"
        )
    return Term(source, targets, "ignore-case" in names, number)


def _words(text: str) -> list[tuple[int, int]]:
    """Start and end of each word and sign; of writing without spaces, of each character."""
    spans: list[tuple[int, int]] = []
    for match in _WORDS.finditer(text):
        start, end = match.span()
        for place in range(start + 1, end):
            if is_spaceless(text[place - 1]) or is_spaceless(text[place]):
                spans.append((start, place))
                start = place
        spans.append((start, end))
    return spans


def _folded(text: str) -> str:
    return text.casefold()


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
