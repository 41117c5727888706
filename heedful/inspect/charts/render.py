"""Charts as files: PNG and SVG by vl-convert, pages that need nothing but themselves."""

from __future__ import annotations

import html
import json
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args

import altair as alt
import vl_convert

from heedful.durable import whole
from heedful.errors import ConfigError

Kind = Literal["html", "png", "svg"]
"""The kind of file."""

_PIXELS_PER_PIXEL = 2.0

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>body {{ margin: 1.5rem; background: #fff; color: #222; font-family: sans-serif }}</style>
</head>
<body>
<main id="chart"></main>
<noscript>This picture is drawn by a script that is in this file.</noscript>
<script type="application/json" id="specification">{specification}</script>
<script>{library}</script>
<script>
const specification = JSON.parse(document.getElementById("specification").textContent);
vegaEmbed("#chart", specification, {options});
</script>
</body>
</html>
"""

# The page fetches nothing and evaluates no text: expressions are interpreted.
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
_LIBRARY = "window.vegaEmbed = vegaEmbed;"
_OPTIONS = {
    "ast": True,
    "renderer": "svg",
    "actions": {"export": True, "source": False, "compiled": False, "editor": False},
}


def draw(chart: alt.TopLevelMixin, kind: Kind) -> bytes:
    """Draw a chart as the content of a file.

    Args:
        chart: any Altair chart.
        kind: `png`, `svg`, or `html`: an interactive page that needs no other file and no network.

    Raises:
        ConfigError: when the installed Altair is too new for the installed vl-convert.
    """
    version = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    if version not in vl_convert.get_vegalite_versions():
        raise ConfigError(
            f"Altair {alt.__version__} writes Vega-Lite {version}, which vl-convert "
            f"{metadata.version('vl-convert-python')} does not know",
            remedy="Upgrade it with: pip install -U vl-convert-python",
        )
    specification = chart.to_dict()
    if kind == "html":
        return _page(specification, version).encode()
    if kind == "svg":
        return vl_convert.vegalite_to_svg(specification, vl_version=version).encode()
    return vl_convert.vegalite_to_png(specification, vl_version=version, scale=_PIXELS_PER_PIXEL)


def save(chart: alt.TopLevelMixin, path: Path | str) -> None:
    """Write a chart to a file, whole or not at all.

    Args:
        chart: any Altair chart.
        path: ends in .html, .png or .svg.

    Raises:
        ConfigError: when it ends otherwise.
        OSError: when it cannot be written.
    """
    content = draw(chart, kind_of(path))
    with whole(Path(path)) as file:
        file.write(content)


def kind_of(path: Path | str) -> Kind:
    """Return the kind of file by its name.

    Raises:
        ConfigError: when a chart cannot be such a file.
    """
    suffix = Path(path).suffix.removeprefix(".")
    kinds: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    if suffix in kinds:
        return kinds[suffix]
    raise ConfigError(
        f"Charts are not written as {Path(path).suffix or 'nothing'!r}",
        where=str(path),
        remedy="Name a .html, .png or .svg file",
    )


def _page(specification: dict[str, Any], version: str) -> str:
    title = specification.get("title", {})
    text = title.get("text", "Chart") if isinstance(title, dict) else title
    # A token must not end the script it stands in.
    inside = json.dumps(specification, ensure_ascii=False).replace("<", "\\u003c")
    return _PAGE.format(
        policy=_POLICY,
        title=html.escape(str(text)),
        specification=inside,
        library=vl_convert.javascript_bundle(_LIBRARY, version).replace("</script", "<\\/script"),
        options=json.dumps(_OPTIONS),
    )
