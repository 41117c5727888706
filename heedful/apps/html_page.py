"""Parts of single-file HTML pages, which can be sent by mail and opened offline."""

from __future__ import annotations

import html

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
{links}<style>{style}</style>
</head>
<body>
<main>
{heading}{body}
</main>
{scripts}</body>
</html>
"""


def document(
    title: str,
    body: str,
    *,
    style: str,
    policy: str,
    links: str = "",
    scripts: str = "",
    heading: bool = True,
) -> str:
    """Return a whole page.

    Args:
        title: plain text.
        body: HTML below the title.
        style: style sheet.
        policy: content security policy, which makes the browser refuse external content.
        links: HTML of the head, ended by a line break.
        scripts: HTML after the content, ended by a line break.
        heading: True to show the title above the body.
    """
    text = html.escape(title)
    return _PAGE.format(
        title=text,
        heading=f"<h1>{text}</h1>\n" if heading else "",
        body=body,
        style=style,
        policy=policy,
        links=links,
        scripts=scripts,
    )


def section(title: str, content: str, note: str = "") -> str:
    """Return a section: a heading, a line of plain text, and the HTML content."""
    words = f"<p>{html.escape(note)}</p>\n" if note else ""
    return f"<section>\n<h2>{html.escape(title)}</h2>\n{words}{content}\n</section>"


def card(content: str) -> str:
    """Return HTML in a frame."""
    return f'<div class="card">{content}</div>'
