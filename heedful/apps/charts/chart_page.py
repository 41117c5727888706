"""Pages that contain the script that draws their charts, so they need no network."""

from __future__ import annotations

import json
from typing import Any

import altair as alt
import vl_convert

from heedful.apps.html_page import document

# Nothing is loaded from the network, and no string is evaluated as code.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
_OPTIONS = {
    # Expressions go through Vega's interpreter, since the policy forbids `eval`.
    "ast": True,
    "renderer": "svg",
    "actions": {"export": True, "source": False, "compiled": False, "editor": False},
}
_SCRIPTS = """<noscript>The charts are drawn by a script that is in this file.</noscript>
<script>{library}</script>
<script>
for (const place of document.querySelectorAll("script[data-chart]")) {{
  const target = document.getElementById(place.dataset.chart);
  vegaEmbed(target, JSON.parse(place.textContent), {options});
}}
// A chart that was hidden has no width yet.
for (const button of document.querySelectorAll("input[name=axis]")) {{
  button.addEventListener("change", () => window.dispatchEvent(new Event("resize")));
}}
</script>
"""


def chart_page(title: str, body: str, style: str, *, heading: bool = True) -> str:
    """Return a whole page.

    Args:
        title: plain text.
        body: HTML with charts from `embedded`.
        style: style sheet.
        heading: True to show the title above the body.
    """
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vega_lite_version())
    library = bundle.replace("</script", "<\\/script")
    return document(
        title,
        body,
        style=style,
        policy=_POLICY,
        links='<link rel="icon" href="data:,">\n',
        scripts=_SCRIPTS.format(library=library, options=json.dumps(_OPTIONS)),
        heading=heading,
    )


def embedded(specification: dict[str, Any], name: str) -> str:
    """Return the HTML that shows a chart.

    Args:
        specification: Vega-Lite specification of the chart.
        name: id of the chart's element, unique in the page.
    """
    # The text `</script>` would end the element, and the browser would run the text after it.
    data = json.dumps(specification, ensure_ascii=False).replace("<", "\\u003c")
    return (
        f'<div id="{name}"></div>\n'
        f'<script type="application/json" data-chart="{name}">{data}</script>'
    )


def vega_lite_version() -> str:
    """Return the major and minor version of Vega-Lite that Altair writes."""
    return ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
