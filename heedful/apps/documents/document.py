"""Documents: the sentences that a translator gets, and the bytes with the translations.

`translate_document` does both. A server, which translates sentences of many requests together,
opens a document (`formats.open_document`), translates its `sentences` and calls `write`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.line_up import TranslatedSentence, line_up, one_space
from heedful.apps.documents.passage import LeftOut, Passage, PassagePart, divided, unclosed
from heedful.apps.documents.passage_writer import write_passage
from heedful.errors import DataError
from heedful.pipelines.aligned_text import Span
from heedful.text.sentences import sentence_spans

_PIECE = 1000
"""Number of characters after which the next sentence of a passage begins another piece."""
_MOST_CHARACTERS = 10_000


Place = tuple[int, int]
"""Index of a text of a document, and of a passage in it."""


@dataclass(frozen=True)
class Sentence:
    """A sentence for a translator.

    Args:
        text: one line without markup.
        alignment: true if a word alignment is needed to place markup.
    """

    text: str
    alignment: bool


class MarkedText:
    """The characters of a document, and the passages found in it.

    Args:
        text: all characters of the document.
        passages: passages in any order; a passage may lie in the markup of another passage.
        settings: settings of the document.
    """

    def __init__(self, text: str, passages: Iterable[Passage], settings: DocumentSettings) -> None:
        self.text = text
        self.settings = settings
        self.passages: list[_Planned] = []
        self.inner: dict[int | None, list[int]] = {}
        self.left_out: dict[int, str] = {}
        self.left: Container[int] = ()
        self._add(None, passages)

    def _add(self, parent: int | None, passages: Iterable[Passage]) -> None:
        """Add passages that lie in the markup of a parent passage, or of none."""
        enclosing: list[int] = []
        for passage in sorted(passages, key=lambda p: (p.start, -p.end)):
            while enclosing and self.passages[enclosing[-1]].passage.end <= passage.start:
                enclosing.pop()
            around = self.passages[enclosing[-1]].passage if enclosing else None
            assert around is None or passage.end <= around.end, "passages do not cross"
            number = len(self.passages)
            self.inner.setdefault(enclosing[-1] if enclosing else parent, []).append(number)
            self.passages.append(_Planned(passage, _sentences(passage, self.settings)))
            self.passages[-1].check()
            if passage.end > passage.start:
                enclosing.append(number)
            self._add(number, passage.inner)

    def write(
        self, translations: Callable[[str], TranslatedSentence], left: Container[int] = ()
    ) -> str:
        """Return the text with its passages translated.

        Args:
            translations: function that returns the translation of a sentence.
            left: indices of passages to leave unchanged.
        """
        self.left = left
        self.left_out = {
            number: reason
            for number, planned in enumerate(self.passages)
            if (reason := planned.passage.left_out)
        }
        return self._range(None, 0, len(self.text), translations)

    def _range(
        self,
        parent: int | None,
        start: int,
        end: int,
        translations: Callable[[str], TranslatedSentence],
    ) -> str:
        """Return a range of the text with its passages translated."""
        numbers = self.inner.get(parent, [])
        first = bisect_left(numbers, start, key=lambda n: self.passages[n].passage.start)
        written, done = [], start
        for number in numbers[first:]:
            passage = self.passages[number].passage
            if passage.end > end:
                break
            written.append(self.text[done : passage.start])
            try:
                written.append(self._passage(number, translations))
            except LeftOut as error:
                if parent is not None and self.passages[parent].passage.inner:
                    raise  # the parent is left out as a whole
                self.left_out[number] = str(error)
                written.append(self.text[passage.start : passage.end])
            done = passage.end
        written.append(self.text[done:end])
        return "".join(written)

    def _passage(self, number: int, translations: Callable[[str], TranslatedSentence]) -> str:
        planned = self.passages[number]
        passage = planned.passage
        if number in self.left and passage.wrap is not None:
            return self.text[passage.start : passage.end]

        def copy(start: int, end: int) -> str:
            return self._range(number, start, end, translations)

        if number in self.left:
            return copy(passage.start, passage.end)
        answers = [translations(text) for text in planned.texts]
        unchanged = all(
            answer.text == text for answer, text in zip(answers, planned.texts, strict=True)
        )
        if not unchanged:
            written = "".join(
                write_passage(
                    piece,
                    line_up(piece.text, sentences, answers[numbers], piece.breaks, piece.borders),
                    copy,
                )
                for piece, sentences, numbers in planned.pieces()
            )
        elif passage.is_in_place:
            written = copy(passage.start, passage.end)
            if passage.copies and written == self.text[passage.start : passage.end]:
                return written
        else:
            written = "".join(copy(part.start, part.end) for part in passage.parts)
        return written if passage.wrap is None else passage.wrap(written)


@dataclass(frozen=True)
class _Planned:
    """A passage and the ranges of its sentences that have words to translate."""

    passage: Passage
    sentences: tuple[Span, ...]

    @cached_property
    def texts(self) -> tuple[str, ...]:
        text = self.passage.text
        return tuple(one_space(text[start:end]) for start, end in self.sentences)

    @property
    def has_markup(self) -> bool:
        return any(part.kind not in ("text", "soft") for part in self.passage.parts)

    def check(self) -> None:
        """Refuse a sentence with markup whose words are too many to align.

        Raises:
            DataError: when the sentence is too long.
        """
        for text in self.texts if self.has_markup else ():
            if len(text) > _MOST_CHARACTERS:
                raise DataError(
                    f"A sentence with markup has more than {_MOST_CHARACTERS:,} characters: "
                    f"{text[:40]}…",
                    remedy="Break it into sentences or paragraphs",
                )

    def pieces(self) -> Iterator[tuple[Passage, list[Span], slice]]:
        """Yield pieces of the passage with few sentences: placing markup is quadratic in words.

        Each piece comes with the ranges and the indices of its sentences.
        """
        parts = list(self.passage.parts)
        first, offset = 0, 0
        for number, (start, _) in enumerate(self.sentences):
            if start - offset > _PIECE and number > first:
                taken, parts = divided(parts, start - offset)
                if any(part.is_container for part in unclosed(taken)):
                    parts = [*taken, *parts]
                    continue
                yield self._piece(taken, first, number, offset)
                first, offset = number, start
        yield self._piece(parts, first, len(self.sentences), offset)

    def _piece(
        self, parts: Sequence[PassagePart], first: int, last: int, offset: int
    ) -> tuple[Passage, list[Span], slice]:
        spans = [(start - offset, end - offset) for start, end in self.sentences[first:last]]
        return replace(self.passage, parts=tuple(parts)), spans, slice(first, last)


def _sentences(passage: Passage, settings: DocumentSettings) -> tuple[Span, ...]:
    text = "" if passage.left_out else passage.text
    spans: list[Span] = []
    for line in re.finditer(r"[^\n]+", text):
        within = line[0]
        if settings.split == "sentences":
            found = list(sentence_spans(within, settings.language))
        else:
            bare = within.strip()
            found = [(within.index(bare), within.index(bare) + len(bare))]
        spans += [(line.start() + start, line.start() + end) for start, end in found]
    words = [False] * len(text)
    here = 0
    for part in passage.parts:
        after = here + len(part.text)
        if part.kind == "text":
            words[here:after] = [character.isalpha() for character in part.text]
        elif part.text.strip():  # a sentence cannot end inside a code span
            before = [span for span in spans if span[1] <= here]
            across = [span for span in spans if span[0] < after and span[1] > here]
            behind = [span for span in spans if span[0] >= after]
            if len(across) > 1:
                spans = [*before, (across[0][0], across[-1][1]), *behind]
        here = after
    return tuple(span for span in spans if any(words[slice(*span)]))


class Document:
    """A document that was read and can be translated.

    Args:
        texts: texts of the document: one, or several for a package of files.
        pack: function that makes bytes from the written texts.
    """

    def __init__(self, texts: Sequence[MarkedText], pack: Callable[[Sequence[str]], bytes]) -> None:
        self.texts = texts
        self.pack = pack
        planned = [planned for text in texts for planned in text.passages]
        marked = {text for each in planned if each.has_markup for text in each.texts}
        every = dict.fromkeys(text for each in planned for text in each.texts)
        self.sentences = tuple(Sentence(text, text in marked) for text in every)

    @property
    def passages(self) -> int:
        """The number of passages that are translated."""
        return sum(bool(planned.texts) for text in self.texts for planned in text.passages)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Place, text and reason of each passage that the last `write` did not translate."""
        return tuple(
            self.described((number, passage), reason)
            for number, text in enumerate(self.texts)
            for passage, reason in sorted(text.left_out.items())
        )

    @property
    def places(self) -> list[Place]:
        """The places of all passages."""
        return [
            (n, passage)
            for n, text in enumerate(self.texts)
            for passage in range(len(text.passages))
        ]

    def described(self, place: Place, reason: str) -> str:
        """Return the line number and the text of a passage, with a reason for leaving it out.

        Args:
            place: place of the passage.
            reason: reason for leaving the passage unchanged.
        """
        text = self.texts[place[0]]
        passage = text.passages[place[1]].passage
        shown = text.text[passage.parts[0].start : passage.parts[-1].end]
        line = text.text.count("\n", 0, passage.parts[0].start) + 1
        return f"line {line} ({' '.join(shown.split())[:60]}): {reason}"

    def write(
        self,
        translations: Sequence[TranslatedSentence],
        left: Collection[Place] = frozenset(),
    ) -> bytes:
        """Return the translated document.

        Args:
            translations: translations of `sentences`, in their order.
            left: places of passages to leave unchanged.
        """
        found = {
            sentence.text: translation
            for sentence, translation in zip(self.sentences, translations, strict=True)
        }
        return self.pack(
            [
                text.write(found.__getitem__, {passage for t, passage in left if t == number})
                for number, text in enumerate(self.texts)
            ]
        )
