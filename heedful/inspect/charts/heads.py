"""What heads do, as a table of layers and heads."""

from __future__ import annotations

import altair as alt
import numpy as np

from heedful.errors import ConfigError, suggest
from heedful.inspect.charts.frame import (
    INK,
    SERIES,
    SOFT,
    amount,
    bare,
    entitled,
    ink_over,
    legend,
    signed,
    table,
)
from heedful.inspect.measures import MEANING, HeadMeasures, Measures

LABEL = "label"
_MEASURES = {
    "entropy": "mean entropy of attention, in nats",
    "confidence": "mean of the largest weight",
    "distance": "mean distance of what is looked at, in tokens",
    "offset": "mean distance with its sign: below 0 for what came before",
}
_WIDE, _TALL = 62, 26
_COLOURS = dict(zip(MEANING, (*SERIES, "#117733"), strict=True))
_NONE, _NO_COLOUR = "none", "#f0f0ee"


def heads(measures: Measures, of: str = LABEL) -> alt.LayerChart:
    """A cell for each head of each layer.

    Args:
        measures: from `measure`.
        of: `label`: what each head does, where the evidence is strong; `entropy`, `confidence`,
            `distance` or `offset`; or a kind of key, such as `previous`: the share of attention on
            it.

    Raises:
        ConfigError: when that was not measured.
    """
    title = f"Heads of {measures.part} attention"
    corpus = f"{measures.rows:,} rows of {measures.sentences:,} sentences"
    if of == LABEL:
        chart = _labels(measures)
        return entitled(chart, f"{title}: what they do", f"{corpus}; no label, no strong evidence")
    found = [(head, value) for head in measures.heads if (value := _value(head, of)) is not None]
    if not found:
        known = [LABEL, *_MEASURES, *dict.fromkeys(k for h in measures.heads for k in h.shares)]
        raise ConfigError(
            f"Heads of {measures.part} attention have no measure {of!r}",
            remedy=suggest(of, known),
        )
    values = np.array([value for _, value in found])
    data = table(
        layer=[head.layer for head, _ in found],
        head=[head.head for head, _ in found],
        value=values,
        baseline=[_baseline(head, of) for head, _ in found],
    )
    more = [alt.Tooltip("baseline:N", title="even attention")] if of not in _MEASURES else []
    tooltip = [*_WHICH, alt.Tooltip("value:Q", title=of, format=".3f"), *more]
    colour = (signed if of == "offset" else amount)(values, of, field="value")
    base = _table(data, measures).encode(tooltip=tooltip)
    text = base.mark_text(fontSize=11).encode(
        text=alt.Text("value:Q", format=".2f"),
        color=ink_over("value", 0.55 * (float(np.abs(values).max()) or 1.0)),
    )
    meaning = _MEASURES.get(of) or f"share of attention {MEANING[of]}"
    chart = alt.layer(base.mark_rect().encode(color=colour), text).properties(view=bare())
    return entitled(chart, f"{title}: {meaning}", corpus)


_WHICH = [alt.Tooltip("layer:O"), alt.Tooltip("head:O")]


def _labels(measures: Measures) -> alt.LayerChart:
    """Cells with the name of what a head does."""
    kinds = [_NONE if head.label is None else head.label.kind for head in measures.heads]
    data = table(
        layer=[head.layer for head in measures.heads],
        head=[head.head for head in measures.heads],
        kind=kinds,
        name=["" if kind == _NONE else kind for kind in kinds],
        why=["no strong evidence" if h.label is None else h.label.why for h in measures.heads],
    )
    there = [kind for kind in MEANING if kind in kinds]
    scale = alt.Scale(
        domain=[*there, _NONE], range=[*(_COLOURS[kind] for kind in there), _NO_COLOUR]
    )
    tooltip = [*_WHICH, alt.Tooltip("kind:N"), alt.Tooltip("why:N")]
    base = _table(data, measures).encode(tooltip=tooltip)
    colour = alt.Color("kind:N", scale=scale, legend=legend("mostly looks at"))
    # A light cell with a name in dark letters: the colour is never all that says it.
    cells = base.mark_rect(stroke="white", fillOpacity=0.45).encode(color=colour)
    names = base.mark_text(fontSize=10, color=INK).encode(text="name:N")
    return alt.layer(cells, names).properties(view=bare())


def _table(data: alt.InlineData, measures: Measures) -> alt.Chart:
    """Layers down, heads across."""
    axis = {
        "labelAngle": 0,
        "labelColor": INK,
        "titleColor": SOFT,
        "titleFontWeight": "normal",
        "domain": False,
        "ticks": False,
    }
    across = sorted({head.head for head in measures.heads})
    down = sorted({head.layer for head in measures.heads})
    return alt.Chart(data, width=alt.Step(_WIDE), height=alt.Step(_TALL)).encode(
        x=alt.X("head:O", scale=alt.Scale(domain=across), axis=alt.Axis(orient="top", **axis)),
        y=alt.Y("layer:O", scale=alt.Scale(domain=down), axis=alt.Axis(**axis)),
    )


def _value(head: HeadMeasures, of: str) -> float | None:
    if of in _MEASURES:
        value: float | None = getattr(head, of)
        return value
    return head.shares[of].share if of in head.shares else None


def _baseline(head: HeadMeasures, of: str) -> str:
    return f"{head.shares[of].baseline:.3f}" if of in head.shares else ""
