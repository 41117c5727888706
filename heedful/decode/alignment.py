"""Which source words a translation's words were made from, read off cross-attention.

Attention is recomputed for the finished translation, so asking for it never changes the text.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from heedful.decode.aligned import Alignment
from heedful.decode.ensemble import Ensemble
from heedful.decode.protocol import Specials, State, StepModel
from heedful.decode.scoring import decoder_input
from heedful.decode.scripts import word_spans
from heedful.models.translator import Translator, TranslatorState
from heedful.text.protocol import TextTokenizer
from heedful.text.words import MARK

Matrices = npt.NDArray[np.float64]


def attention_of(
    model: StepModel[State], state: State, targets: Sequence[Sequence[int]], specials: Specials
) -> Tensor:
    """Attention of each target token to the source while it was predicted.

    Args:
        model: a translator, or an ensemble of some, whose members are averaged. Heads are averaged,
            over the upper half of the layers: the lower ones hardly look at the word being
            translated.
        state: from `start`, of the sources [B, S].
        targets: ids of each target, without special tokens.
        specials: for the decoder's input.

    Returns:
        [B, T, S] float32; row t belongs to target token t, the row after the last to the end token.
    """
    translator: object = model
    if isinstance(translator, Ensemble):
        assert isinstance(state, tuple)
        pairs = zip(translator.members, state, strict=True)
        each = [attention_of(member, own, targets, specials) for member, own in pairs]
        return torch.stack(each).mean(0)
    assert isinstance(translator, Translator)
    begun = cast("TranslatorState", state)
    target, positions = decoder_input(targets, specials, begun.memory_positions.device)
    count = len(translator.decoder.blocks)
    upper = range(count // 2, count)
    return translator.attention_from(begun, target, positions, upper).mean((0, 2))


def align(
    weights: Tensor,
    source: tuple[TextTokenizer, Sequence[int], str],
    target: tuple[TextTokenizer, Sequence[int], str],
) -> Alignment:
    """Gather attention between tokens into attention between words.

    A target word's row is the mean over its tokens; a source word's weight, the sum over its.

    Args:
        weights: [T, S] of target tokens to source tokens as the encoder read them, framed by its
            tokenizer; any more rows and columns are left out.
        source: its tokenizer, ids and text; words are taken from the text.
        target: the same of the translation.
    """
    source_words, source_word_of = token_words(*source)
    target_words, target_word_of = token_words(*target)
    first = len(source[0].first)
    numbers = weights.double().cpu().numpy()
    numbers = numbers[: len(target_word_of), first : first + len(source_word_of)]
    columns = _gathered(numbers, source_word_of, len(source_words))
    rows = _gathered(columns.T, target_word_of, len(target_words)).T
    counts = np.bincount(target_word_of, minlength=len(target_words)).clip(min=1)
    matrix = (rows / counts[:, None]).tolist()
    return Alignment(tuple(source_words), tuple(target_words), tuple(map(tuple, matrix)))


def _gathered(tokens: Matrices, word_of: Sequence[int], words: int) -> Matrices:
    """Sums [R, words] of the columns [R, tokens] of each word."""
    found = np.zeros((len(tokens), words))
    if word_of:
        # Tokens of a word stand side by side.
        starts = [0, *(i for i in range(1, len(word_of)) if word_of[i] != word_of[i - 1])]
        found[:, [word_of[i] for i in starts]] = np.add.reduceat(tokens, starts, axis=1)
    return found


def token_words(
    tokenizer: TextTokenizer, ids: Sequence[int], text: str
) -> tuple[list[str], list[int]]:
    """The words of a text and, for each of its tokens, the word it belongs to.

    Where writing has no spaces every character is a word, or as many as a token holds.

    Args:
        tokenizer: of the ids.
        ids: without special tokens.
        text: what the ids stand for. Where it has as many words as the decoded ids, its words are
            shown as they are written there.
    """
    decoded = tokenizer.decode(ids)
    spans = word_spans(decoded)
    if not spans:
        return [], []
    touched = _touched_words(tokenizer, ids, decoded, spans)
    joined = [False] * len(spans)  # whether a word cannot be told from the one before it
    for first, last in touched:
        if last > first:
            joined[first + 1 : last + 1] = [True] * (last - first)
    number = [*itertools.accumulate(not with_previous for with_previous in joined)]
    if text != decoded:
        written = word_spans(text)
        if len(written) == len(spans):
            decoded, spans = text, written
    starts = [start for (start, _), inner in zip(spans, joined, strict=True) if not inner]
    ends = [end for (_, end), inner in zip(spans, [*joined[1:], False], strict=True) if not inner]
    words = [decoded[start:end] for start, end in zip(starts, ends, strict=True)]
    return words, [number[first] - 1 for first, _ in touched]


def _touched_words(
    tokenizer: TextTokenizer, ids: Sequence[int], decoded: str, spans: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """First and last word that each token holds characters of; the next word for none at all."""
    word_at: list[int] = []  # a character's word; of one between words, the next
    for word, (_, end) in enumerate(spans):
        word_at += [word] * (end - len(word_at))
    word_at += [len(spans) - 1] * (len(decoded) + 1 - len(word_at))
    touched: list[tuple[int, int]] = []
    start = 0
    for end in _ends(tokenizer, ids, decoded):
        last = max(start, end - 1)
        while last > start and decoded[last].isspace():
            last -= 1
        touched.append((word_at[start], word_at[last]))
        start = max(start, end)
    return touched


def _ends(tokenizer: TextTokenizer, ids: Sequence[int], decoded: str) -> list[int]:
    """How many characters of the text the tokens up to each one make."""
    pieces = tokenizer.pieces(ids)
    joined = "".join(pieces).replace(MARK, " ")
    before = len(joined) - len(decoded)  # a space that marks the beginning of the first word
    if before in (0, 1) and joined == " " * before + decoded:
        return [max(0, end - before) for end in itertools.accumulate(map(len, pieces))]
    return [len(tokenizer.decode(ids[:count])) for count in range(1, len(ids) + 1)]
