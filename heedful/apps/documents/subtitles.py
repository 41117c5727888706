"""Subtitles: SubRip (SRT) and WebVTT, with a passage for each utterance or spread sentence."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.passage import (
    Passage,
    PassagePart,
    encode_html,
    plain,
    text_parts,
)
from heedful.apps.documents.spread_sentences import Cue, Line, Utterance, spread_passages
from heedful.errors import DataError
from heedful.pipelines.aligned_text import Kind

_TIME = r"((?:\d+:)?\d+:\d+[.,]\d+)"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}")
_SRT_TAG = re.compile(r"</?[a-zA-Z][^<>]*>|\{\\[^{}]*\}")
_VTT_TAG = re.compile(r"</?[a-zA-Z][^<>]*>|<[\d:.]+>")
_REFERENCE = re.compile(r"&(?:amp|lt|gt|nbsp|lrm|rlm|#\d+|#x[\da-fA-F]+);")
_SPEAKER = re.compile(r"(?:</?[^<>]*>|\{[^{}]*\})*[-–—‐]\s*\S")
_LINE_END = re.compile(r"\r*\n|\r")  # programs that convert LF to CR LF twice write CR CR LF
_NOT_CUES = ("NOTE", "STYLE", "REGION")


def read_srt(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of SubRip subtitles; see `Reader`."""
    cues = _cues(text, list(_numbered(text)), _SRT_TAG, name)
    yield from _passages(text, cues, _SRT_TAG, settings)


def read_vtt(text: str, settings: DocumentSettings, name: str) -> Iterator[Passage]:
    """Yield the passages of WebVTT subtitles; see `Reader`."""
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
    yield from _passages(text, _cues(text, kept, _VTT_TAG, name), _VTT_TAG, settings)


def _numbered(text: str) -> Iterator[tuple[int, Line]]:
    starts = [0, *(match.end() for match in _LINE_END.finditer(text))]
    ends = [*(match.start() for match in _LINE_END.finditer(text)), len(text)]
    yield from enumerate(zip(starts, ends, strict=True), start=1)


def _cues(
    text: str, lines: Sequence[tuple[int, Line]], tags: re.Pattern[str], name: str
) -> Iterator[Cue]:
    """Yield the cues, each from a line of times to an empty line."""
    said: list[Line] = []
    times = (0.0, 0.0)
    is_cue = in_text = False
    for position, (number, (start, end)) in enumerate(lines):
        line = text[start:end]
        follows = text[slice(*lines[position + 1][1])] if position + 1 < len(lines) else ""
        if (match := _TIMES.match(line)) is not None:
            yield Cue(*times, tuple(said))  # a cue without a following empty line
            times = (_seconds(match[1]), _seconds(match[2]))
            said, is_cue, in_text = [], True, True
        elif in_text and tags is _SRT_TAG and line.strip().isdigit() and _TIMES.match(follows):
            continue  # the number of the next cue, which players do not show
        elif not line.strip():
            yield Cue(*times, tuple(said))
            said, in_text = [], False
        elif in_text:
            said.append((start, end))
        elif _TIMES.match(follows):  # number or name of the cue
            continue
        elif is_cue and tags is _SRT_TAG:  # players also show text after an empty line
            said.append((start, end))
            in_text = True
        else:
            raise DataError(
                f"Line {number} should have the times of a subtitle",
                where=name,
                remedy="Such as 00:00:01,000 --> 00:00:02,500",
            )
    yield Cue(*times, tuple(said))


def _seconds(time: str) -> float:
    seconds = 0.0
    for part in time.replace(",", ".").split(":"):
        seconds = 60 * seconds + float(part)
    return seconds


def _passages(
    text: str, cues: Iterator[Cue], tags: re.Pattern[str], settings: DocumentSettings
) -> Iterator[Passage]:
    """Yield the passages of cues; a dash at the start of a line marks another speaker."""
    utterances: list[Utterance] = []
    for cue in cues:
        spoken: list[list[Line]] = []
        for start, end in cue.lines:
            if spoken and _SPEAKER.match(text, start, end) is None:
                spoken[-1].append((start, end))
            else:
                spoken.append([(start, end)])
        for number, lines in enumerate(spoken):
            is_answer = _SPEAKER.match(text, *lines[0]) is not None
            parts = tuple(_parts(text, lines, tags))
            is_last = number == len(spoken) - 1
            utterances.append(Utterance(cue, parts, number == 0, is_last, is_answer))
    encode = encode_html if tags is _VTT_TAG else plain
    yield from spread_passages(text, utterances, encode, settings)


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
