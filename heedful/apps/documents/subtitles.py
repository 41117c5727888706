"""Subtitles: SubRip (SRT) and WebVTT, with a passage for each utterance."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.passage import (
    Passage,
    PassagePart,
    Surroundings,
    lines_of,
    make_passage,
    plain,
    text_parts,
)
from heedful.errors import DataError
from heedful.pipelines.markup_tree import Kind

_TIMES = re.compile(r"\s*(?:\d+:)?\d+:\d+[.,]\d+\s*-->\s*(?:\d+:)?\d+:\d+[.,]\d+")
_SRT_TAG = re.compile(r"</?[a-zA-Z][^<>]*>|\{\\[^{}]*\}")
_VTT_TAG = re.compile(r"</?[a-zA-Z][^<>]*>|<[\d:.]+>")
_REFERENCE = re.compile(r"&(?:amp|lt|gt|nbsp|lrm|rlm|#\d+|#x[\da-fA-F]+);")
_SPEAKER = re.compile(r"(?:</?[^<>]*>|\{[^{}]*\})*[-–—‐]\s*\S")
_NOT_CUES = ("NOTE", "STYLE", "REGION")
Line = tuple[int, int]


def read_srt(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of SubRip subtitles.

    Args:
        text: text of the document.
        settings: settings of the document.
        name: name of the document, for messages.

    Raises:
        DataError: naming the line where the times of the first subtitle are missing.
    """
    yield from _cues(text, list(_numbered(text)), _SRT_TAG, name)


def read_vtt(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of WebVTT subtitles.

    Arguments and errors are those of `read_srt`.
    """
    if not re.match(r"WEBVTT(?:[ \t\r\n]|$)", text):
        raise DataError(
            "Line 1 is not WEBVTT", where=name, remedy="If it is SubRip, add --format srt"
        )
    lines = list(_numbered(text))
    kept: list[tuple[int, Line]] = []
    skips = True  # the header ends at the first empty line
    for position, (number, (start, end)) in enumerate(lines):
        line = text[start:end]
        begins = position == 0 or not text[slice(*lines[position - 1][1])].strip()
        if begins and position:
            skips = line.split(maxsplit=1)[:1] in [[word] for word in _NOT_CUES]
        if not skips or not line.strip():
            kept.append((number, (start, end)))
    yield from _cues(text, kept, _VTT_TAG, name)


def _numbered(text: str) -> Iterator[tuple[int, Line]]:
    yield from enumerate(lines_of(text), start=1)


def _cues(
    text: str, lines: Sequence[tuple[int, Line]], tags: re.Pattern[str], name: str
) -> Iterator[Passage]:
    """Yield the passages of cues, which reach from a line of times to an empty line."""
    said: list[Line] = []
    is_cue = in_text = False
    for position, (number, (start, end)) in enumerate(lines):
        line = text[start:end]
        follows = text[slice(*lines[position + 1][1])] if position + 1 < len(lines) else ""
        if _TIMES.match(line):
            yield from _passages(text, said, tags)  # of a cue without an empty line behind it
            said, is_cue, in_text = [], True, True
        elif in_text and tags is _SRT_TAG and line.strip().isdigit() and _TIMES.match(follows):
            continue  # the number of the next cue, as players read it
        elif not line.strip():
            yield from _passages(text, said, tags)
            said, in_text = [], False
        elif in_text:
            said.append((start, end))
        elif _TIMES.match(follows):  # number or name of the cue
            continue
        elif is_cue and tags is _SRT_TAG:  # text after an empty line, which players also show
            said.append((start, end))
            in_text = True
        else:
            raise DataError(
                f"Line {number} should have the times of a subtitle",
                where=name,
                remedy="Such as 00:00:01,000 --> 00:00:02,500",
            )
    yield from _passages(text, said, tags)


def _passages(text: str, lines: Sequence[Line], tags: re.Pattern[str]) -> Iterator[Passage]:
    """Yield the passages of a cue; a line that begins with a dash is another speaker's."""
    spoken: list[list[Line]] = []
    for start, end in lines:
        is_other = _SPEAKER.match(text, start, end)
        if is_other is not None:
            spoken.append([(start, end)])
        elif spoken:
            spoken[-1].append((start, end))
        else:
            spoken = [[(start, end)]]
    for each in spoken:
        yield from make_passage(_parts(text, each, tags), _vtt if tags is _VTT_TAG else plain)


def _parts(text: str, lines: Sequence[Line], tags: re.Pattern[str]) -> Iterator[PassagePart]:
    escapes = _REFERENCE if tags is _VTT_TAG else None
    before: int | None = None
    for start, end in lines:
        dash = re.compile(r"\s*[-–—‐]\s*").match(text, start, end)
        start = start + len(text[start:end]) - len(text[start:end].lstrip())
        end = start + len(text[start:end].rstrip())
        if before is not None:
            yield PassagePart(before, start, "soft", " ")
        elif dash is not None:
            start = dash.end()
        before = end
        for match in tags.finditer(text, start, end):
            yield from text_parts(text, start, match.start(), escapes, html.unescape)
            yield PassagePart(match.start(), match.end(), _kind(match[0]))
            start = match.end()
        yield from text_parts(text, start, end, escapes, html.unescape)


def _kind(tag: str) -> Kind:
    if tag.startswith("</"):
        return "close"
    return "open" if tag[1].isalpha() and tag[0] == "<" else "single"


def _vtt(text: str, place: Surroundings) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
