"""Texts of any length as encoders read them: in windows that overlap, each in its frame.

Training and `heedful tag` and `answer` both come here, so a model reads what it was trained on.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from heedful.errors import DataError
from heedful.pipelines.encoder_input import EncoderInput, frame
from heedful.pipelines.predictions import first_pieces
from heedful.text.text_tokenizer import TextTokenizer


@dataclass(frozen=True)
class Window:
    """Consecutive pieces of a long text that are read together.

    Args:
        start: number of the first.
        end: number of the one after the last.
        own_start: first of the pieces that have no more context in another window.
        own_end: the one after the last of these.
    """

    start: int
    end: int
    own_start: int
    own_end: int


@dataclass(frozen=True)
class Part:
    """A window of a text in its frame.

    Args:
        input: what the model reads.
        window: which pieces of the text these are.
        shift: a piece's index in the input minus its number in the text.
    """

    input: EncoderInput
    window: Window
    shift: int


def parts_of(
    tokenizer: TextTokenizer,
    ids: Sequence[int],
    *,
    longest: int | None,
    where: str,
    stride: int | None = None,
    before: Sequence[int] | None = None,
) -> list[Part]:
    """A text as one input or several.

    Args:
        tokenizer: gives the frame.
        ids: of the text.
        longest: most tokens of an input, its frame counted; None for any number.
        where: what to call the text in errors.
        stride: see `overlapping`.
        before: ids of a text that stands before the window in every input, such as a question.

    Raises:
        DataError: when the frame and the text before leave no room.
        ModelError: when there is a text before and the model takes no pairs.
    """
    empty = frame(tokenizer, *([()] if before is None else [before, ()])).ids
    if longest is not None and len(empty) >= longest:
        raise DataError(
            f"{len(empty)} tokens, special ones included, stand before and after a text and leave "
            f"no room for it: {longest} is the most that is read at once",
            where=where,
            remedy="Give shorter questions" if before else "Allow longer inputs",
        )
    found = []
    for window in overlapping(len(ids), None if longest is None else longest - len(empty), stride):
        piece_ids = ids[window.start : window.end]
        texts = [piece_ids] if before is None else [before, piece_ids]
        item = frame(tokenizer, *texts)
        begin = item.first if before is None else item.second
        found.append(Part(item, window, begin - window.start))
    return found


def word_pieces(
    tokenizer: TextTokenizer, words: Sequence[str]
) -> tuple[list[int], list[int | None]]:
    """The ids of words with a space between each two, and the first piece of each word.

    Returns:
        The ids, and for each word the number of its first piece; None where it has none of its own.

    Raises:
        DataError: when a word is not valid Unicode (a lone surrogate).
    """
    ids, spans = tokenizer.encode_spans(" ".join(words))
    return ids, first_pieces(words, spans)


def answer_pieces(spans: Sequence[tuple[int, int]], start: int, end: int) -> tuple[int, int] | None:
    """The first and last piece that hold some of the characters from `start` up to `end`.

    Args:
        spans: of the pieces: index of the first character and of the one after the last.
        start: index of the first character.
        end: index of the one after the last.

    Returns:
        None where no piece holds any.
    """
    held = [i for i, (low, high) in enumerate(spans) if low < end and start < high]
    return (held[0], held[-1]) if held else None


def overlapping(count: int, room: int | None, stride: int | None = None) -> list[Window]:
    """The windows of a text. Each piece is one window's own.

    Args:
        count: pieces of the text.
        room: most pieces of a window; None holds every text whole.
        stride: pieces from the beginning of one window to that of the next; half of the room if
            unset. The last window begins earlier where it would be shorter than the others.
    """
    if room is None or count <= room:
        return [Window(0, count, 0, count)]
    step = max(1, room // 2) if stride is None else min(stride, room)
    starts = [*range(0, count - room, step), count - room]
    cuts = [(start + room + after) // 2 for start, after in itertools.pairwise(starts)]
    bounds = [0, *cuts, count]
    return [Window(s, s + room, *bounds[i : i + 2]) for i, s in enumerate(starts)]
