"""Translation of documents by a server, whose sentences share the queue of all requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import PurePath

from anyio import to_thread

from heedful.apps.documents.document import Document
from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.formats import (
    FORMATS,
    WrittenDocument,
    format_of,
    open_document,
)
from heedful.apps.documents.line_up import TranslatedSentence
from heedful.apps.serve.exchange import RefusedRequest
from heedful.apps.serve.languages import primary_subtag
from heedful.apps.serve.service import Service
from heedful.apps.serve.translated_text import TranslatedText
from heedful.search.search_settings import SearchSettings

_WITH_QUESTIONS = ("csv", "tsv")
"""Formats that need the names of text columns, which requests do not give."""

Advance = Callable[[int, int], None]
"""Receiver of the number of translated sentences and the number of all sentences."""


def supported_suffixes() -> list[str]:
    """Return the suffixes of files that are translated."""
    return [
        suffix
        for format in FORMATS.values()
        if format.name not in _WITH_QUESTIONS
        for suffix in format.suffixes
    ]


def translated_format(name: PurePath) -> str:
    """Return the format of a document by the suffix of its name.

    Raises:
        RefusedRequest, DataError: when documents of that suffix are not translated.
    """
    format = format_of(name)
    if format in _WITH_QUESTIONS:
        raise RefusedRequest(400, "Which columns are text is not known", "invalid", where="file")
    return format


async def translate_documents(
    service: Service,
    contents: Sequence[bytes],
    format: str,
    route: Sequence[str],
    *,
    settings: SearchSettings | None = None,
    language: str = "en",
    target_language: str | None = None,
    name: str = "document",
    advance: Advance | None = None,
) -> list[list[WrittenDocument]]:
    """Translate documents.

    Passages whose translation would change the structure of a document stay as they are.

    Args:
        service: service of the server.
        contents: bytes of each document.
        format: format of all documents.
        route: names of the models, in order.
        settings: settings of the search; the server's if unset.
        language: language of the documents.
        target_language: language of the translations, for formats that hold several languages.
        name: name of the documents, for messages.
        advance: receiver of progress for files that may take longer than a request; if unset, the
            limits of a request hold.

    Returns:
        For each document its translation, followed by documents of next-best sentence translations.

    Raises:
        DataError: when a document is damaged or too large.
        UserError: as for `Service.translate`.
    """
    split = service.models.options.split or "sentences"
    chosen = DocumentSettings(
        language=primary_subtag(language),
        target_language=target_language,
        split="passages" if split == "none" else split,
    )
    opened = partial(open_document, format=format, settings=chosen, name=name)
    documents = [await to_thread.run_sync(opened, data) for data in contents]
    texts = {
        wanted: list(
            dict.fromkeys(
                sentence.text
                for document in documents
                for sentence in document.sentences
                if sentence.alignment == wanted
            )
        )
        for wanted in (False, True)
    }
    count = len(texts[False]) + len(texts[True])
    done = 0

    def finished(number: int) -> None:
        nonlocal done
        done += number
        if advance is not None:
            advance(done, count)

    if advance is None:
        service.check([*texts[False], *texts[True]])
    finished(0)
    # Over a pivot, alignments begin at words of the pivot text, so markup keeps its order instead.
    answers = await asyncio.gather(
        *(
            service.translate_passages(
                texts[wanted],
                route,
                settings=settings,
                alignment=wanted and len(route) == 1,
                advance=finished,
            )
            for wanted in (False, True)
        )
    )
    found = [dict(zip(texts[wanted], answers[wanted], strict=True)) for wanted in (False, True)]

    def write(
        document: Document, data: bytes, translations: Sequence[TranslatedSentence]
    ) -> WrittenDocument:
        return FORMATS[format].write(document, translations, data, chosen, name, lenient=True)

    ranks = max((text.ranks for each in answers for text in each), default=0)
    return [
        [
            await to_thread.run_sync(write, document, data, _ranked(document, found, rank))
            for rank in range(ranks + 1)
        ]
        for document, data in zip(documents, contents, strict=True)
    ]


def _ranked(
    document: Document, found: Sequence[dict[str, TranslatedText]], rank: int
) -> list[TranslatedSentence]:
    """Return the sentence translations of one rank, 0 for the best, for a document."""
    return [
        _translation(found[sentence.alignment][sentence.text], rank)
        for sentence in document.sentences
    ]


async def document_text(data: bytes, format: str, name: str) -> str:
    """Return the text of a document, for the detection of its language.

    Raises:
        DataError: when the document is damaged or too large.
    """
    document = await to_thread.run_sync(partial(open_document, format=format, name=name), data)
    return "\n".join(sentence.text for sentence in document.sentences)


def _translation(text: TranslatedText, rank: int) -> TranslatedSentence:
    (line,) = text.ranked(rank)  # a passage is a single line
    return TranslatedSentence(str(line), line.alignment)
