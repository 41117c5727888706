"""Sentences over several subtitles, which are translated as a whole and divided again.

The subtitles and their times stay the same. Each subtitle gets a share of the translation that
depends on the length of its text and its duration; cuts are between words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.passage import Encode, Passage, PassagePart, cut, make_passage, trimmed
from heedful.text.pretokenization import is_spaceless, word_spans
from heedful.text.sentences import sentence_spans

Line = tuple[int, int]
_MOST_SECONDS = 5.0
"""Maximum gap between two subtitles of one sentence."""
_MOST_CUES = 8
_MOST_CHARACTERS = 500
_END = re.compile(r"[!?…。．！？؟۔।॥։።៕။]+[\"'”’»)\]」』）]*\Z|\.\.+[\"'”’»)]*\Z")
_STOP = re.compile(r"\.[\"'”’»)\]]*\Z")
# Sounds ([MUSIC], (sighs)), songs, and speakers before their words (JOHN: Hello, >> Hello).
_SIGN = re.compile(r"[\[(（【].*[\])）】]|.*[♪♫].*", re.DOTALL)
_SPEAKER = re.compile(r">>|[A-ZÀ-Þ][A-ZÀ-Þ .'\d-]+:|[\[(]")
_TIMED = re.compile(r"<[\d:.]+>")
_TAG = re.compile(r"<(/?)[^<>]*>|\{\\[^{}]*\}")
_FEWEST_ENDS = 0.1
"""Share of subtitles with an end mark below which no sentence spans subtitles."""
_MOST_ENDS = 0.4
"""Share above which text without an end mark continues even before a capital letter."""


@dataclass(frozen=True)
class Cue:
    """A subtitle: start and end of its display in seconds, and its lines of text."""

    start: float
    end: float
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Utterance:
    """Words of one speaker in a subtitle.

    Args:
        cue: the subtitle.
        parts: parts of the text, with line breaks as spaces (`soft`).
        is_first, is_last: true for the first and the last utterance of the subtitle.
        is_answer: true if it begins with a dash, which marks another speaker.
    """

    cue: Cue
    parts: tuple[PassagePart, ...]
    is_first: bool
    is_last: bool
    is_answer: bool

    @cached_property
    def text(self) -> str:
        """The text that a translator reads."""
        return "".join(part.text for part in self.parts)


def spread_passages(
    text: str, utterances: Sequence[Utterance], encode: Encode, settings: DocumentSettings
) -> Iterator[Passage]:
    """Yield the passages of subtitles.

    Args:
        text: text of the document.
        utterances: all utterances, in order.
        encode: function that writes translated text.
        settings: settings of the document.
    """
    said = [each for each in utterances if each.text.strip()]
    written = [one for one in said if one.is_last and not _SIGN.fullmatch(one.text.strip())]
    ends = sum(_is_end(one) for one in written) / max(1, len(written))
    follows = [other for one, other in pairwise(said) if one.is_last and not _is_end(one)]
    lower = sum(_begins_lower(other) for other in follows) / max(1, len(follows))
    group: list[Utterance] = []
    for utterance in said:
        if group and not _runs_on(text, group, utterance, ends, lower, settings.language):
            yield from _group_passages(text, group, encode, settings)
            group = []
        group.append(utterance)
    yield from _group_passages(text, group, encode, settings)


def _is_end(utterance: Utterance) -> bool:
    bare = utterance.text.rstrip()
    return bool(_END.search(bare) or _STOP.search(bare))


def _begins_lower(utterance: Utterance) -> bool:
    return next(filter(str.isalpha, utterance.text), "A").islower()


def _runs_on(
    text: str,
    group: Sequence[Utterance],
    other: Utterance,
    ends: float,
    lower: float,
    language: str,
) -> bool:
    """Return True if the last sentence of a group continues in an utterance.

    Args:
        text: text of the document.
        group: utterances before the utterance.
        other: the utterance.
        ends: share of the subtitles that end with the end of a sentence.
        lower: share of the subtitles after an unfinished sentence that begin with a small letter.
        language: language of the document.
    """
    one = group[-1]
    bare, next_one = one.text.strip(), other.text.strip()
    if not (one.is_last and other.is_first) or other.is_answer or _END.search(bare):
        return False
    if other.cue.start - one.cue.end > _MOST_SECONDS or len(group) == _MOST_CUES:
        return False
    if sum(len(each.text) for each in group) + len(next_one) > _MOST_CHARACTERS:
        return False
    if _SIGN.fullmatch(bare) or _SIGN.fullmatch(next_one) or _SPEAKER.match(next_one):
        return False
    pieces = [text[each.parts[0].start : each.parts[-1].end] for each in (one, other)]
    # Subtitles with times of single words are not joined, and neither are parts of tags.
    if any(map(_TIMED.search, pieces)) or re.search("[<>{}]", bare + next_one):
        return False
    if _STOP.search(bare):  # perhaps an abbreviation such as "Mr."
        joined = f"{bare} {next_one[0].upper()}{next_one[1:]}"
        return all(end != len(bare) for _, end in sentence_spans(joined, language))
    # Songs and some subtitles have no full stops, but begin each sentence with a capital.
    has_ends = ends >= _MOST_ENDS or (ends >= _FEWEST_ENDS and lower >= 0.5)
    return has_ends or (_begins_lower(other) and ends >= _FEWEST_ENDS)


def _group_passages(
    text: str, group: Sequence[Utterance], encode: Encode, settings: DocumentSettings
) -> Iterator[Passage]:
    """Yield the passages of consecutive utterances: text within one, and sentences over several."""
    if len(group) < 2:
        for utterance in group:
            yield from make_passage(utterance.parts, encode)
        return
    starts, joined = [], ""
    for utterance in group:
        is_glued = bool(joined) and is_spaceless(joined[-1]) and is_spaceless(utterance.text[0])
        joined += " " if joined and not is_glued else ""
        starts.append(len(joined))
        joined += utterance.text
    spans = list(sentence_spans(joined, settings.language))
    if settings.split != "sentences" or not spans:
        spans = [(0, len(joined))]
    pending: list[tuple[int, int, int]] = []  # utterance and range of sentences inside it
    for start, end in spans:
        ranges = [
            (number, max(start - begun, 0), min(end - begun, len(each.text)))
            for number, (begun, each) in enumerate(zip(starts, group, strict=True))
            if start < begun + len(each.text) and begun < end
        ]
        if len(ranges) == 1 and pending and pending[-1][0] == ranges[0][0]:
            pending[-1] = (ranges[0][0], pending[-1][1], ranges[0][2])
        elif len(ranges) == 1:
            pending.append(ranges[0])
        else:
            yield from _spread(text, [(group[n], a, b) for n, a, b in ranges], encode)
    for number, start, end in pending:
        yield from make_passage(cut(group[number].parts, start, end), encode)


def _spread(
    text: str, ranges: Sequence[tuple[Utterance, int, int]], encode: Encode
) -> Iterator[Passage]:
    """Yield the passage of a sentence in several utterances."""
    pieces, weights, line_counts = [], [], []
    seconds = sum(each.cue.end - each.cue.start for each, _, _ in ranges) or 1.0
    characters = sum(end - start for _, start, end in ranges)
    for utterance, start, end in ranges:
        piece = trimmed(cut(utterance.parts, start, end))
        if not piece:
            continue
        # A sentence that fills a part of a subtitle gets the same share of its duration.
        share = (end - start) / max(1, len(utterance.text))
        time = (utterance.cue.end - utterance.cue.start) * share / seconds
        weights.append((end - start) / characters + time)
        line_counts.append(1 + sum(part.kind == "soft" for part in piece))
        pieces.append(piece)
    parts: list[PassagePart] = []
    for piece in pieces:
        if parts and not (is_spaceless(parts[-1].text[-1:] or " ") and is_spaceless(piece[0].text)):
            parts.append(PassagePart(parts[-1].end, parts[-1].end, "text", " "))
        for part in piece:  # the lines of the translation are broken later
            is_break = part.kind == "soft"
            parts.append(PassagePart(part.start, part.start, "text", " ") if is_break else part)
    gaps = [text[one[-1].end : other[0].start] for one, other in pairwise(pieces)]
    line_break = "\r\n" if "\r\n" in text else "\n"
    start, end = pieces[0][0].start, pieces[-1][-1].end

    def wrap(written: str) -> str:
        unchanged = written == text[start:end]
        return written if unchanged else _laid_out(gaps, weights, line_counts, line_break, written)

    for passage in make_passage(parts, encode):
        yield replace(passage, start=start, end=end, wrap=wrap, copies=False)


def _laid_out(
    gaps: Sequence[str],
    weights: Sequence[float],
    line_counts: Sequence[int],
    line_break: str,
    written: str,
) -> str:
    """Return a translation divided over its subtitles.

    Args:
        gaps: characters between the subtitles: times and surrounding tags.
        weights: weight of each subtitle; their sum is arbitrary.
        line_counts: number of lines of each subtitle.
        line_break: characters between lines.
        written: translation with its tags.
    """
    shares = _divided(written, weights)
    if len(shares) < len(weights):  # fewer words than subtitles: every subtitle shows all words
        shares = [written, *[_TAG.sub("", written)] * len(gaps)]
    laid = [
        line_break.join(_divided(share, [1.0] * count))
        for share, count in zip(shares, line_counts, strict=True)
    ]
    return laid[0] + "".join(gap + each for gap, each in zip(gaps, laid[1:], strict=True))


def _divided(written: str, weights: Sequence[float]) -> list[str]:
    """Divide a text in proportion to weights; keep it whole if it has too few words.

    Args:
        written: text with tags.
        weights: weight of each piece; their sum is arbitrary.
    """
    places = _places(written)
    if len(places) < len(weights) - 1:
        return [written.strip()]
    length, total = len(_TAG.sub("", written)), sum(weights)
    # Dynamic programming: the cheapest cuts up to each place, for a growing number of pieces.
    best: list[tuple[float, list[int]]] = [(0.0, []), *((float("inf"), []) for _ in places)]
    wanted = 0.0
    for weight in weights[:-1]:
        wanted += weight / total * length
        following: list[tuple[float, list[int]]] = [(float("inf"), [])]
        before = best[0]
        for (place, seen, cost), here in zip(places, best[1:], strict=True):
            following.append((before[0] + abs(seen - wanted) + cost, [*before[1], place]))
            before = min(before, here)
        best = following
    cuts = min(best)[1]
    return [written[a:b].strip() for a, b in pairwise([0, *cuts, len(written)])]


def _places(written: str) -> list[tuple[int, int, float]]:
    """Return the possible cuts of a text: offset, visible characters before it, and cost."""
    inside = [False] * (len(written) + 1)
    depth_at, seen_at = [0] * (len(written) + 1), list(range(len(written) + 1))
    for tag in _TAG.finditer(written):
        inside[tag.start() + 1 : tag.end()] = [True] * (tag.end() - tag.start() - 1)
        step = 0 if tag[0][0] == "{" else -1 if tag[1] else 1
        for place in range(tag.end(), len(written) + 1):
            depth_at[place] += step
            seen_at[place] -= tag.end() - tag.start()
    places = []
    for (_, end), (start, _) in pairwise(word_spans(written)):
        is_sign = unicodedata.category(written[start]) in ("Po", "Pe", "Pf", "Lm")
        if inside[start] or inside[end] or (start == end and is_sign):
            continue
        # A cut after a comma costs less, and a cut within a pair of tags more.
        cost = 40.0 * (depth_at[start] > 0) - 4.0 * (written[end - 1] in ",;:、，；：")
        places.append((start, seen_at[start], cost))
    return places
