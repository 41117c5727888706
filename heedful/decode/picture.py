"""An alignment drawn with characters."""

from __future__ import annotations

from heedful.decode.aligned import Alignment
from heedful.decode.scripts import display_width

_SHADES = " ░▒▓█"
_CELL = 2


def draw_alignment(alignment: Alignment, *, width: int = 100) -> str:
    """A table of shades: source words along the top, target words down the side.

    Source words are written downwards. When they do not fit side by side, tables follow each other.

    Args:
        alignment: what to draw.
        width: columns of the terminal.
    """
    if not alignment.source_words or not alignment.target_words:
        return ""
    margin = max(map(display_width, alignment.target_words))
    at_once = max(1, (width - margin - 1) // (_CELL + 1))
    tables = [
        _table(alignment, margin, start, start + at_once)
        for start in range(0, len(alignment.source_words), at_once)
    ]
    return "\n\n".join(tables)


def _table(alignment: Alignment, margin: int, start: int, stop: int) -> str:
    heads = alignment.source_words[start:stop]
    tall = max(map(len, heads))
    lines = [
        " " * margin + "".join(" " + _fill(head.rjust(tall)[row], _CELL) for head in heads)
        for row in range(tall)
    ]
    for word, weights in zip(alignment.target_words, alignment.matrix, strict=True):
        cells = "".join(" " + _shade(weight) * _CELL for weight in weights[start:stop])
        lines.append(" " * (margin - display_width(word)) + word + cells)
    return "\n".join(line.rstrip() for line in lines)


def _fill(text: str, width: int) -> str:
    return text + " " * (width - display_width(text))


def _shade(weight: float) -> str:
    level = int(min(max(weight, 0.0), 1.0) * len(_SHADES))
    return _SHADES[min(level, len(_SHADES) - 1)]
