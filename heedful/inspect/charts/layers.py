"""What layers and sub-layers make of each token."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np

from heedful.errors import ConfigError, ModelError
from heedful.inspect.charts.frame import (
    INK,
    MOST_TOKENS,
    SOFT,
    amount,
    bare,
    entitled,
    ink_over,
    labels,
    named,
    pixels,
    places,
    signed,
    table,
)
from heedful.inspect.layer_lens import Lens
from heedful.inspect.residual import Contributions

_TALL = 24
_WIDE = 66
_READABLE = 40


def lens(found: Lens) -> alt.LayerChart:
    """What the model would say after each layer: the likeliest piece, darker where it is likelier.

    Args:
        found: from `lens`.

    Raises:
        ConfigError: when there are too many tokens to be drawn.
    """
    best = found.probabilities[:, :, 0]
    layer, row = (axis.ravel() for axis in np.indices(best.shape))
    data = table(
        layer=layer,
        row=row,
        probability=best,
        piece=labels([pieces[0] for pieces in _flat(found.pieces)]),
        others=[", ".join(labels(pieces[1:])) for pieces in _flat(found.pieces)],
        entropy=found.entropy,
        rank=found.rank,
    )
    size = _size(found.rows)
    base = _table(data, "layer", found.layers, "after layer", found.rows, size).encode(
        tooltip=[
            alt.Tooltip("row_name:N", title="at"),
            alt.Tooltip("down_name:N", title="after layer"),
            alt.Tooltip("piece:N", title="would say"),
            alt.Tooltip("probability:Q", format=".3f"),
            alt.Tooltip("others:N", title="or"),
            alt.Tooltip("rank:Q", title="rank of the model's answer, from 0"),
            alt.Tooltip("entropy:Q", title="entropy, nats", format=".2f"),
        ]
    )
    colour = amount(np.ones(1), "probability", field="probability")
    chart = _written(base.mark_rect().encode(color=colour), base, "piece:N", size, "probability")
    return entitled(
        chart, "What each layer would say", "The likeliest piece if the layer were the last"
    )


def sublayers(found: Contributions) -> alt.LayerChart:
    """How much each sub-layer adds to the stream: its length, by the length of what it is added to.

    Args:
        found: from `contributions`.

    Raises:
        ConfigError: when there are too many tokens to be drawn.
    """
    share = found.sizes / np.maximum(found.stream_sizes, np.finfo(np.float32).tiny)
    down, row = (axis.ravel() for axis in np.indices(share.shape))
    data = table(
        sublayer=down,
        row=row,
        share=share,
        size=found.sizes,
        stream=found.stream_sizes,
        cosine=found.cosines,
    )
    size = _size(found.rows)
    base = _table(data, "sublayer", found.sublayers, "sub-layer", found.rows, size).encode(
        tooltip=[
            alt.Tooltip("row_name:N", title="at"),
            alt.Tooltip("down_name:N", title="sub-layer"),
            alt.Tooltip("size:Q", title="adds a length of", format=".3f"),
            alt.Tooltip("stream:Q", title="to one of", format=".3f"),
            alt.Tooltip("cosine:Q", title="cosine of the angle between", format=".2f"),
        ]
    )
    colour = amount(share, "share", field="share", kind="sqrt")
    chart = _written(base.mark_rect().encode(color=colour), base, "share:Q", size, "share", share)
    return entitled(
        chart,
        "How much each sub-layer adds to the stream",
        "Length of what is added, by the length of the stream it is added to",
    )


def scores(found: Contributions) -> alt.LayerChart:
    """What each part adds to the score of the token at each place: blue for it, ochre against it.

    Args:
        found: from `contributions`.

    Raises:
        ModelError: when scores are no sums in this model.
        ConfigError: when there are too many tokens to be drawn.
    """
    if found.scores is None or found.tokens is None:
        raise ModelError(
            "Scores of this stack are no sums over its parts",
            remedy="Look at a translator's decoder or at a language model",
        )
    down, row = (axis.ravel() for axis in np.indices(found.scores.shape))
    data = table(part=down, row=row, score=found.scores)
    size = _size(found.tokens)
    base = _table(data, "part", found.parts, "part", found.tokens, size).encode(
        tooltip=[
            alt.Tooltip("row_name:N", title="score of"),
            alt.Tooltip("down_name:N", title="part"),
            alt.Tooltip("score:Q", title="adds", format="+.3f"),
        ]
    )
    colour = signed(found.scores, "adds", field="score")
    chart = _written(
        base.mark_rect().encode(color=colour), base, "score:Q", size, "score", found.scores
    )
    return entitled(chart, "What each part adds to the score of the token")


def _table(
    data: alt.InlineData,
    down: str,
    names: Sequence[str],
    title: str,
    rows: Sequence[str],
    size: int,
) -> alt.Chart:
    """Layers or parts down, tokens across, each `size` pixels wide."""
    across = places(rows, size, None, side="top")
    axis = alt.Axis(
        title=title,
        labelExpr=named(names, "datum.value"),
        labelColor=INK,
        titleColor=SOFT,
        titleFontWeight="normal",
        domain=False,
        ticks=False,
    )
    return (
        alt.Chart(data, width=alt.Step(size), height=alt.Step(_TALL))
        .transform_calculate(
            row_name=named(rows, "datum.row"), down_name=named(names, f"datum.{down}")
        )
        .encode(
            x=alt.X("row:O", **across),
            y=alt.Y(f"{down}:O", scale=alt.Scale(domain=list(range(len(names)))), axis=axis),
        )
    )


def _written(
    cells: alt.Chart,
    base: alt.Chart,
    text: str,
    size: int,
    field: str,
    values: np.ndarray | None = None,
) -> alt.LayerChart:
    """Cells, with what they say written into them where there is room."""
    layers = [cells]
    if size >= _READABLE:
        most = 1.0 if values is None else float(np.abs(values).max()) or 1.0
        words = alt.Text(text, format=".2f") if text.endswith(":Q") else alt.Text(text)
        written = base.mark_text(fontSize=10, limit=size - 4).encode(
            text=words, color=ink_over(field, 0.55 * most)
        )
        layers.append(written)
    return alt.layer(*layers).properties(view=bare())


def _size(rows: Sequence[str]) -> int:
    """Pixels of a token across."""
    if len(rows) > MOST_TOKENS:
        raise ConfigError(
            f"A chart has room for {MOST_TOKENS} tokens along a side, and there are {len(rows)}",
            remedy="Look at a shorter text",
        )
    return pixels(len(rows), room=1600, most=_WIDE)


def _flat(pieces: Sequence[Sequence[Sequence[str]]]) -> list[Sequence[str]]:
    return [row for layer in pieces for row in layer]
