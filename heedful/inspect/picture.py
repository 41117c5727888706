"""Attention drawn with characters."""

from __future__ import annotations

from heedful.decode.aligned import Alignment
from heedful.decode.picture import draw_alignment
from heedful.inspect.maps import AttentionMap

NAMES = {
    "encoder": "Attention of the encoder",
    "decoder": "Attention of the decoder to itself",
    "cross": "Attention of the decoder (rows: what it writes) to the source",
}


def draw_attention(attention: AttentionMap, *, width: int = 100) -> str:
    """The mean of a map's layers and heads as a table of shades, under a line that says what it is.

    Args:
        attention: what to draw.
        width: columns of the terminal.
    """
    mean = attention.mean()
    most = float(mean.max())
    shades = tuple(tuple(row) for row in (mean / (most or 1.0)).tolist())
    columns, rows = (tuple(map(shown, side)) for side in (attention.columns, attention.rows))
    title = f"{NAMES[attention.part]}; {averaged(attention)}; darkest is {most:.2f}"
    return f"{title}\n{draw_alignment(Alignment(columns, rows, shades), width=width)}"


def averaged(attention: AttentionMap) -> str:
    """Which layers and heads the mean of a map is of, in words."""
    return f"{_numbered('layer', attention.layers)}, {_numbered('head', attention.heads)}"


def _numbered(name: str, numbers: tuple[int, ...]) -> str:
    if len(numbers) == 1:
        return f"{name} {numbers[0]}"
    run = numbers == tuple(range(numbers[0], numbers[-1] + 1))
    listed = f"{numbers[0]} to {numbers[-1]}" if run else ", ".join(map(str, numbers))
    return f"mean of {name}s {listed}"


def shown(piece: str) -> str:
    """A piece without what would move the cursor or the lines."""
    escaped = piece.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    return "".join(c if c.isprintable() else "\ufffd" for c in escaped) or "·"
