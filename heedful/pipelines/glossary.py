"""Glossaries: terms that must be translated as given, found in sources and required in outputs.

A glossary is a termbase (TBX), or a text file of two or three columns with tabs between them:

    bicycle      Fahrrad
    bank | banks Bank | Banken | Kreditinstitut
    Heedful                               keep
    user guide   Handbuch                 ignore-case

A term matches whole words. Of several terms that begin at the same word, the longest matches.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from heedful.durable import decode_line, open_regular
from heedful.errors import DataError
from heedful.text.inline_terms import InlineTerm
from heedful.text.pretokenization import is_spaceless
from heedful.text.protected_spans import SPAN_KINDS, Protection
from heedful.text.tokenizer import TextTokenizer

if TYPE_CHECKING:  # it loads PyTorch, which a text without numbers or terms does not need
    from heedful.search.phrase_automaton import RequiredPhrase

_FLAGS = ("ignore-case", "keep")
_BETWEEN_FORMS = "|"
_WORDS = re.compile(r"\w+|[^\w\s]")
_FORM = "Write a line as: source, tab, target (either in several forms, with | between), tab, flags"


@dataclass(frozen=True)
class Term:
    """A term of a glossary.

    Args:
        source: words of the source language, with single spaces.
        targets: translations, any of which serves; the source itself if it is to be kept.
        ignore_case: True if upper and lower case match each other.
        line: number of the term's line in the file, from 1; 0 without a file.
    """

    source: str
    targets: tuple[str, ...]
    ignore_case: bool = False
    line: int = 0

    @property
    def name(self) -> str:
        """Name of the term in messages, such as "bank → Bank | Kreditinstitut"."""
        return f"{self.source} → {f' {_BETWEEN_FORMS} '.join(self.targets)}"


@dataclass(frozen=True)
class Occurrence:
    """An occurrence of a term in a text.

    Args:
        term: the term.
        start: index of its first character.
        end: index after its last character.
    """

    term: Term
    start: int
    end: int


class Glossary:
    """Terms with their required translations.

    Args:
        terms: terms; the targets of terms with the same source are merged.
        name: name of the glossary in errors, such as its file.
        is_soft: True to write translations into the source instead of requiring them, for a model
            that was trained with `heedful train --soft-terms`.
    """

    def __init__(
        self, terms: Sequence[Term], name: str = "glossary", *, is_soft: bool = False
    ) -> None:
        self.name = name
        self.is_soft = is_soft
        merged: dict[tuple[str, bool], Term] = {}
        for term in terms:
            # Two terms of one source stay apart if only one of them ignores case.
            key = (_folded(term.source) if term.ignore_case else term.source, term.ignore_case)
            other = merged.setdefault(key, term)
            # Targets stay in the order of the file, as soft terms use the first one.
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
            # The longest term wins: "user guide" before "user".
            row.sort(key=lambda item: -len(item[0]))

    def __len__(self) -> int:
        return len(self.terms)

    @classmethod
    def read(
        cls,
        path: str | Path,
        *,
        soft: bool = False,
        languages: tuple[str | None, str | None] = (None, None),
    ) -> Self:
        """Read a glossary file.

        Args:
            path: text file in UTF-8 with columns as in the module's description, or a termbase with
                the suffix .tbx. A first line with the columns `source` and `target` is a heading.
            soft: value of `is_soft`.
            languages: codes of source and target, which a termbase needs.

        Raises:
            DataError: when the file cannot be read or has no terms, or a line is no term.
        """
        try:
            with open_regular(Path(path)) as file:
                content = file.read()
        except OSError as error:
            raise DataError(
                f"The glossary cannot be read: {error.strerror or error}",
                where=str(path),
                remedy="Check the path",
            ) from None
        terms: list[Term] = []
        if is_termbase(path):
            return cls(_terms_of_concepts(content, str(path), *languages), str(path), is_soft=soft)
        for number, line in enumerate(content.split(b"\n"), start=1):
            text = decode_line(line, number, str(path))
            columns = [" ".join(column.split()) for column in text.split("\t")]
            # Tables exported from spreadsheets often have a heading.
            heading = number == 1 and [c.lower() for c in columns[:2]] == ["source", "target"]
            if any(columns) and not heading:
                terms += _terms(columns, number, str(path))
        if not terms:
            raise DataError("The glossary has no terms", where=str(path), remedy=_FORM)
        return cls(terms, str(path), is_soft=soft)

    @classmethod
    def of_terms(cls, terms: Mapping[str, str | Sequence[str]], name: str = "glossary") -> Self:
        """Make a glossary of terms and their translations, one or several of each.

        Args:
            terms: translations by term, as whole words.
            name: name of the glossary in errors.

        Raises:
            DataError: when a term or a translation is empty.
        """
        made: list[Term] = []
        for source, found in terms.items():
            targets = (found,) if isinstance(found, str) else tuple(found)
            words = [" ".join(each.split()) for each in (source, *targets)]
            if not targets or not all(words):
                raise DataError("A term and its translation have words", where=name)
            made.append(Term(words[0], tuple(words[1:])))
        return cls(made, name)

    def joined(self, other: Self) -> Self:
        """Return a glossary with the terms of both; it is soft if the other one is."""
        return type(self)((*self.terms, *other.terms), self.name, is_soft=other.is_soft)

    def find(self, text: str) -> list[Occurrence]:
        """Find the terms in a text, from left to right; none overlap.

        Addresses, placeholders, tags, code and what `translate="no"` marks stay as they are: terms
        in them are no terms.
        """
        kept = _kept_spans(text)
        spans = [
            (start, end)
            for start, end in _words(text)
            if not any(a < end and start < b for a, b in kept)
        ]
        words = [_folded(text[start:end]) for start, end in spans]
        found: list[Occurrence] = []
        place = 0
        while place < len(words):
            term = self._longest(text, spans, words, place)
            if term is None:
                place += 1
                continue
            # Continue after the term, so that occurrences do not overlap.
            count, chosen = term
            found.append(Occurrence(chosen, spans[place][0], spans[place + count - 1][1]))
            place += count
        return found

    def _longest(
        self, text: str, spans: Sequence[tuple[int, int]], words: Sequence[str], place: int
    ) -> tuple[int, Term] | None:
        """Return the longest term that begins with a word, and its number of words."""
        for own, term in self._by_first.get(words[place], ()):
            count = len(own)
            if list(words[place : place + count]) != own:
                continue
            # The words match without case. Whether case matters is decided on the text itself, with
            # single spaces as in the glossary.
            found = " ".join(text[spans[place][0] : spans[place + count - 1][1]].split())
            if term.ignore_case and _folded(found) == _folded(term.source):
                return count, term
            # The first word of a text may have a capital letter because it begins a sentence.
            if found == term.source or (place == 0 and found == _capitalized(term.source)):
                return count, term
        return None

    def check(self, tokenizer: TextTokenizer) -> None:
        """Refuse targets that a model cannot write.

        Args:
            tokenizer: tokenizer of the target language.

        Raises:
            DataError: when a target has characters without tokens; its line is named.
        """
        for term in self.terms:
            for target in term.targets:
                ids = tokenizer.encode(target)
                # A search could force the unknown token, but its text is no word.
                if not ids or tokenizer.unk in ids:
                    raise DataError(
                        f"The model's vocabulary cannot spell {target!r}",
                        where=f"{self.name}:{term.line}" if term.line else self.name,
                        remedy="Take the term out, or use a model trained on text that has its "
                        "characters (a byte-bpe tokenizer has all)",
                    )

    def phrases(self, text: str, tokenizer: TextTokenizer) -> tuple[RequiredPhrase, ...]:
        """Return the phrases that a translation must contain, one for each term in the source.

        Args:
            text: source text.
            tokenizer: tokenizer of the target language.

        Returns:
            The phrases; none if the glossary is soft.
        """
        if self.is_soft:
            return ()
        from heedful.search.phrase_automaton import RequiredPhrase

        phrases: list[RequiredPhrase] = []
        for found in self.find(text):
            targets = list(found.term.targets)
            # The translation of a text's first term may begin a sentence too.
            if not _WORDS.search(text[: found.start]):
                targets += map(_capitalized, found.term.targets)
            # A word right after a punctuation mark, such as a bracket, has other tokens than one
            # after a space.
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
        """Return the first translation of each term in a text; none unless the glossary is soft."""
        if not self.is_soft:
            return []
        return [InlineTerm(one.start, one.end, one.term.targets[0]) for one in self.find(text)]

    def agreed(self, source: str, target: str) -> list[InlineTerm]:
        """Return the terms of a pair's source whose translation is in its target.

        Translations match as whole words. Of several in the target, the first one of the glossary
        is returned. A target word belongs to the translation of at most one term.

        Args:
            source: source text of the pair.
            target: target text of the pair.
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
                    # A matched word is removed: it cannot be the translation of another term.
                    words[place : place + len(own)] = [None] * len(own)
                    agreed.append(InlineTerm(one.start, one.end, form))
                    break
        return agreed


# Elements whose text is code, or that say themselves that they are not translated.
_UNTRANSLATED = re.compile(
    r"<(code|pre|kbd|samp|var|script|style)\b[^>]*>.*?</\1\s*>"
    r"|<(\w+)\b[^>]*\stranslate\s*=\s*[\"']?no\b[^>]*>.*?</\2\s*>",
    re.IGNORECASE | re.DOTALL,
)


def _kept_spans(text: str) -> list[tuple[int, int]]:
    """Return the spans of the parts of a text that a translation keeps."""
    if not _MARKS.search(text):  # a fast path for most texts
        return []
    found = [match.span() for match in _UNTRANSLATED.finditer(text)]
    return found + Protection(SPAN_KINDS).find(text)


_MARKS = re.compile(r"[/@<{}`%$&|\[]|www\.|[^\x00-\uffff]|:\w")


def _place_of(own: Sequence[str], words: Sequence[str | None]) -> int | None:
    """Return the index at which `words` contain `own`; the first word may have a capital letter."""
    if own and list(words[: len(own)]) == [_capitalized(own[0]), *own[1:]]:
        return 0
    for place in range(len(words) - len(own) + 1):
        if words[place] == own[0] and list(words[place : place + len(own)]) == own:
            return place
    return None


def spellings(text: str, tokenizer: TextTokenizer, *, spaced: bool) -> list[tuple[int, ...]]:
    """Return the token sequences that spell a phrase.

    Args:
        text: text of the phrase.
        tokenizer: tokenizer of the phrase.
        spaced: False to include the tokens right after a punctuation mark without a space.
    """
    ids = [tuple(tokenizer.encode(text))]
    if not spaced:
        # An opening bracket represents all punctuation marks without a space after them.
        sign = tokenizer.encode("(")
        after = tokenizer.encode(f"({text}")
        # A tokenizer may join bracket and word into one token; then there is no second spelling.
        if after[: len(sign)] == sign:
            ids.append(tuple(after[len(sign) :]))
    return ids


def is_termbase(path: str | Path) -> bool:
    """Return True for the file name of a termbase (TBX), which is read for two languages."""
    return Path(path).suffix.lower() == ".tbx"


def _terms_of_concepts(
    content: bytes, file: str, source: str | None, target: str | None
) -> list[Term]:
    """Return the terms of a termbase; those of one concept are forms of each other."""
    from heedful.pipelines.termbase import read_concepts

    if source is None or target is None:
        raise DataError(
            "Which languages of the termbase to read is not known",
            where=file,
            remedy="Name them, such as --languages en-de, or give text with tabs",
        )
    return [
        Term(form, concept.targets, line=concept.line)
        for concept in read_concepts(content, file, source, target)
        for form in concept.sources
    ]


def _terms(columns: Sequence[str], number: int, file: str) -> list[Term]:
    """Return the term of a line in each form of its source."""
    where = f"{file}:{number}"
    if len(columns) > 3 and any(columns[3:]):  # a spreadsheet writes empty columns
        raise DataError(f"{len(columns)} columns where 3 are known", where=where, remedy=_FORM)
    source, target, flags = (*columns, "", "")[:3]  # target and flags may be missing
    names = flags.replace(",", " ").split()
    unknown = [name for name in names if name not in _FLAGS]
    if unknown:
        raise DataError(
            f"There is no flag {unknown[0]!r}",
            where=where,
            remedy=f"The flags are {' and '.join(_FLAGS)}",
        )
    sources = tuple(filter(None, (part.strip() for part in source.split(_BETWEEN_FORMS))))
    if not sources:
        raise DataError("There is no source", where=where, remedy=_FORM)
    targets = tuple(filter(None, (part.strip() for part in target.split(_BETWEEN_FORMS))))
    if "keep" in names:
        if targets not in ((), sources):
            raise DataError(
                "A term that is kept has no other translation",
                where=where,
                remedy="Leave the target empty, or the flag keep out",
            )
        return [Term(form, (form,), "ignore-case" in names, number) for form in sources]
    if not targets:
        raise DataError(
            "There is no target", where=where, remedy=f"{_FORM}; the flag keep copies the source"
        )
    # Forms are listed and not stemmed: Snowball takes `housing` for a form of `house`, `universe`
    # for one of `university`.
    return [Term(form, targets, "ignore-case" in names, number) for form in sources]


def _words(text: str) -> list[tuple[int, int]]:
    """Return the span of each word and punctuation mark; of each character in spaceless scripts."""
    spans: list[tuple[int, int]] = []
    for match in _WORDS.finditer(text):
        start, end = match.span()
        for place in range(start + 1, end):
            # In Chinese, Japanese, Thai and the like a term may begin at every character.
            if is_spaceless(text[place - 1]) or is_spaceless(text[place]):
                spans.append((start, place))
                start = place
        spans.append((start, end))
    return spans


def _folded(text: str) -> str:
    return text.casefold()


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
