"""The writing of a translated document that is read again before anybody gets it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from heedful.apps.documents.document import Document, Place
from heedful.apps.documents.document_structure import StructurePart, difference
from heedful.apps.documents.line_up import TranslatedSentence
from heedful.errors import DataError


@dataclass(frozen=True)
class WrittenDocument:
    """A translated document.

    Args:
        data: its bytes.
        left_out: place, text and reason of each passage that was not translated.
    """

    data: bytes
    left_out: tuple[str, ...]


def write_checked(
    document: Document,
    translations: Sequence[TranslatedSentence],
    source: bytes,
    structure: Callable[[bytes], Iterable[StructurePart]],
    name: str,
    *,
    lenient: bool,
) -> WrittenDocument:
    """Write a translated document, and compare its structure with that of its source.

    Args:
        document: document that was opened.
        translations: translations of its sentences, in their order.
        source: bytes of the document.
        structure: function that yields the structure of a document by a reader of its own.
        name: name of the document, for messages.
        lenient: true to leave passages as they are whose translation would change the structure.

    Raises:
        DataError: naming the passage whose translation would change the structure.
    """
    parts: list[StructurePart] = []

    def before() -> Iterator[StructurePart]:
        if not parts:  # read once for all comparisons: a fault is found by halving
            parts.extend(structure(source))
        yield from parts

    written = document.write(translations)
    found = None if written == source else difference(before(), structure(written))
    if found is None:
        return WrittenDocument(written, document.left_out)

    def problem(left: Iterable[Place]) -> str | None:
        return difference(before(), structure(document.write(translations, frozenset(left))))

    every = [
        (number, passage)
        for number, text in enumerate(document.texts)
        for passage in range(len(text.passages))
    ]
    culprits = [] if problem(every) else _culprits(every, problem, most=None if lenient else 1)
    if not culprits or not lenient:
        where = document.described(culprits[0], found) if culprits else found
        raise DataError(
            f"The translation would change the structure of the document at {where}",
            where=name,
            remedy="Nothing was written; leave such passages as they are with --lenient",
        )
    written = document.write(translations, frozenset(culprits))
    reason = "its translation would change the structure"
    left = tuple(document.described(each, reason) for each in culprits)
    return WrittenDocument(written, (*document.left_out, *left))


def _culprits(
    every: Sequence[Place], problem: Callable[[Iterable[Place]], str | None], most: int | None
) -> list[Place]:
    """Return the passages without which the translation has no problem, by halving.

    Args:
        every: all passages.
        problem: function that returns the problem if some passages stay as they are.
        most: number of passages that is enough.
    """
    left = set(every)
    culprits: list[Place] = []
    waiting = [list(every)]
    while waiting and (most is None or len(culprits) < most):
        some = waiting.pop()
        if problem(left.difference(some)) is None:
            left.difference_update(some)
        elif len(some) == 1:
            culprits += some
        else:
            half = len(some) // 2
            waiting += [some[half:], some[:half]]
    return culprits
