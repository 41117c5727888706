"""Sentences of a text, by the rules of its language and the marks of its script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from sentencex import get_sentence_boundaries

from heedful.text.pretokenization import LETTER, TextPiece
from heedful.text.tokenizer_pair import ENGLISH, Reading, Split

Span = tuple[int, int]
"""Index of the first character of a sentence, and of the one after its last."""

# White space becomes one ASCII space for each character, so that spans stay true: sentencex 1.0.32
# panics in Rust where punctuation follows a space of several bytes.
_SPACE = re.compile(r"\s")
# Marks that end a sentence and that sentencex does not know: Khmer's, Tibetan's, those of N'Ko,
# Limbu, Balinese, Ol Chiki, Cham, Meetei and Cree, and the half-width full stop of Japanese.
_OTHER_END = re.compile(r"[។៕༎།｡᙮߹᥄᥅᭟᱿꩝꯫]+[」』”’）】》〉\"')\]]*\s*")
# Words that sentencex takes for abbreviations (of Maine, number, illustration, magazine, volume):
# 2.5 % of sentences of Tatoeba end with `me`. Before a digit they are abbreviations.
_WORDS = {
    "en": "me|no|ill|art|may|miss|sec|fed|OK|ID|(?:and|as|than|do|did|am|was|have|can|will) I",
    "de": "mich|mag|Art|Bart|OK",
    "fr": "vol|art",
}
_AFTER_A_WORD = {
    language: re.compile(rf"\b(?:{words})\. +(?=[\"'“‘«]?[^\W\d_])")
    for language, words in _WORDS.items()
}
# Characters read at once: the time of sentencex grows with the square of their number where many
# quotation marks follow each other, to minutes for a hundred thousand.
_WINDOW = 2000
# Where training lines have at least this many sentences on average, a model translates whole lines.
_LINES_HAVE = 2.0
_AFTER_AN_END = re.compile(r"(?<!\.\w)[.!?…] +\w")
# Marks of direction after the end of a sentence, which belong to it.
_DIRECTION = re.compile(r"(?<!\s)[\u200e\u200f\u202c\u2069]+\s*")
# The end of a quotation in Chinese or Japanese, where a sentence may go on: 「はい。」と言った。
_QUOTED = re.compile(r"[」』”’）】》〉]\s*\Z")
_GOES_ON = re.compile(r"[、，,とっのはがをにでも]")


def sentence_spans(text: str, language: str = ENGLISH) -> Iterator[Span]:
    """Yield the span of each sentence, without the white space around it.

    Args:
        text: text without line breaks, or in which they are spaces.
        language: code of its language, whose abbreviations are known; English rules serve for
            languages without rules of their own.
    """
    begun = seen = 0
    plain = _SPACE.sub(" ", text)
    if plain == plain.lower():  # a chat, where nothing begins with a capital
        plain = _AFTER_AN_END.sub(lambda match: match[0].upper(), plain)
        plain = plain if len(plain) == len(text) else text
    for end in _boundaries(plain, language):
        # The number of an item or a lone sign is no sentence, but the beginning of the next one.
        if end < len(text) and not any(map(str.isalpha, text[seen:end])):
            seen = end
            continue
        sentence = text[begun:end]
        first = begun + len(sentence) - len(sentence.lstrip())
        begun = seen = end
        if bare := sentence.strip():
            yield first, first + len(bare)


def sentence_pieces(text: str, language: str = ENGLISH) -> list[TextPiece]:
    """Cut a text into its sentences, each with the white space after it."""
    cuts = [start for start, _ in sentence_spans(text, language)][1:]
    return [TextPiece(text[a:b]) for a, b in pairwise([0, *cuts, len(text)])]


def _boundaries(text: str, language: str) -> Iterator[int]:
    """Yield the end of each sentence, the white space after it included."""
    begun = 0
    for end in _library_ends(text, language):
        if mark := _DIRECTION.match(text, end):
            end = mark.end()
        if text[end : end + 1].islower():  # Yahoo! is no sentence
            continue
        if _QUOTED.search(text, max(begun, end - 9), end) and _GOES_ON.match(text, end):
            continue
        inside = [mark.end() for mark in _OTHER_END.finditer(text, begun, end - 1)]
        if language in _AFTER_A_WORD:
            marks = _AFTER_A_WORD[language].finditer(text, begun, end - 1)
            inside += [m.end() for m in marks if not text[m.end() : m.end() + 1].islower()]
        yield from sorted(inside)
        yield end
        begun = end


def _library_ends(text: str, language: str) -> Iterator[int]:
    """Yield the end of each sentence by sentencex, and of the text."""
    begun = 0
    while begun < len(text):
        window = text[begun : begun + _WINDOW]
        ends = [begun + each["end_index"] for each in get_sentence_boundaries(language, window)]
        if begun + _WINDOW >= len(text):
            yield from ends
            break
        yield from ends[:-1]  # the last one may go on beyond the window
        last = ends[-2] if len(ends) > 1 else begun
        begun = last if last - begun > _WINDOW // 2 else begun + _WINDOW
    yield len(text)


def learned_reading(lines: Iterable[str], language: str = ENGLISH) -> Reading:
    """Return what a model learns to read at once from lines like these.

    Args:
        lines: a sample of the sources that it is trained on.
        language: code of their language; "" if it is unknown.
    """
    language = language or ENGLISH
    sources = [line for line in lines if line.strip()]
    counts = [count for line in sources if (count := count_sentences(line, language))]
    mean = sum(counts) / max(1, len(counts))
    letterless = sum(LETTER.search(line) is None for line in sources) / max(1, len(sources))
    # A model that was trained on single sentences ends after the first: with 1.1 sentences per line
    # in training, half of a text of four sentences was left out.
    split: Split = "sentences" if mean < _LINES_HAVE else "lines"
    return Reading(split, language, round(mean, 3), round(letterless, 4))


def count_sentences(text: str, language: str = ENGLISH) -> int:
    """Return the number of sentences of a text of any number of lines."""
    return sum(1 for line in text.splitlines() for _ in sentence_spans(line, language))
