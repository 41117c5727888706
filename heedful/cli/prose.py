"""Text of docstrings as help shows it: paragraphs, blocks of commands, `code` in another colour.

That much of Markdown is all that they use, and a whole parser of it is slow to load and to run.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

_CODE = "bold cyan"


def prose(text: str) -> Text:
    """Paragraphs whose lines run on, and indented blocks as they are."""
    from rich.text import Text

    found = Text()
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.splitlines()
        if all(line.startswith("    ") for line in lines):
            found.append("\n".join(line[2:] for line in lines), style=_CODE)
        else:
            found.append_text(inline(" ".join(line.strip() for line in lines)))
        found.append("\n\n")
    found.right_crop(1)
    return found


def inline(text: str) -> Text:
    """A line of text, in which `code` stands between backticks."""
    from rich.text import Text

    found = Text()
    for position, part in enumerate(re.split(r"`([^`]+)`", text)):
        found.append(part, style=_CODE if position % 2 else None)
    return found
