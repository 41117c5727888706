"""Altair charts of the results of `heedful.inspect`, for notebooks, pages and files.

They need the extra `studio`. For example:

    from heedful import inspect
    from heedful.apps import charts

    model = inspect.load("RUN")
    reading = inspect.read(model, "A dog runs.")
    chart = charts.matrix(inspect.attention(model, reading))
    chart                                  # a notebook shows it
    charts.save(chart, "attention.html")   # or .png, .svg
"""

from __future__ import annotations

import importlib.util

from heedful.errors import ConfigError

_NEEDED = {"altair": "altair", "vl_convert": "vl-convert-python"}
_MISSING = [name for module, name in _NEEDED.items() if importlib.util.find_spec(module) is None]
if _MISSING:
    raise ConfigError(
        f"Charts need {' and '.join(_MISSING)}",
        where="heedful.apps.charts",
        remedy="Install it with: pip install 'heedful[studio]'",
    )

import altair  # noqa: E402

# Altair's own default is a script that notebooks load from another site: nothing without network.
# Whoever chose a renderer keeps it.
if altair.renderers.active == "default":
    altair.renderers.enable("svg")

# The modules imported below import these packages.
from heedful.apps.charts.attention_charts import (  # noqa: E402
    grid,
    lines,
    links,
    matrix,
    tracing,
    words,
)
from heedful.apps.charts.estimate_charts import (  # noqa: E402
    Estimate,
    bands,
    categories,
    ranking,
)
from heedful.apps.charts.frame import Kind, draw, kind_of, save  # noqa: E402
from heedful.apps.charts.layer_charts import (  # noqa: E402  # noqa: E402
    curves,
    heads,
    lens,
    scores,
    sublayers,
    training,
)

__all__ = [
    "Estimate", "Kind", "bands", "categories", "curves", "draw", "grid", "heads", "kind_of", "lens",
    "lines", "links", "matrix", "ranking", "save", "scores", "sublayers", "tracing", "training",
    "words",
]  # fmt: skip
