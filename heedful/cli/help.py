"""How the help of a verb is drawn: panels of flags, below its docstring.

The library would parse the text of each of a hundred flags as Markdown; `prose` is quicker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cyclopts.help import DefaultFormatter, HelpEntry, HelpPanel
from cyclopts.help.specs import AsteriskColumn, ColumnSpec, NameRenderer

from heedful.cli.prose import inline, prose

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

# Of the terminal's width, what names may take.
_SHARE = 0.35


class HelpFormatter(DefaultFormatter):
    """Panels of flags as the library draws them, below a text drawn by `prose`."""

    def render_description(
        self, console: Console, options: ConsoleOptions, description: Any
    ) -> None:
        """What a verb does, from its docstring."""
        del options
        console.print(prose(_plain(description)))

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """A heading's flags, below what the heading says of them."""
        super().__call__(
            console, options, panel.copy(description=inline(_plain(panel.description)))
        )


def _plain(text: Any) -> str:
    """What the library has wrapped, or nothing where it has nothing to say."""
    return str(getattr(text, "primary_renderable", text or ""))


def columns(
    console: Console, options: ConsoleOptions, entries: list[HelpEntry]
) -> tuple[ColumnSpec, ...]:
    """The columns of a verb's help: wide enough that no flag is folded and can be copied."""
    words = [word for entry in entries for label in entry.all_options for word in label.split()]
    width = max(_SHARE * console.width, min(max(map(len, words), default=0), console.width / 2))
    names = ColumnSpec(
        renderer=NameRenderer(max_width=round(width)), style="cyan", max_width=round(width)
    )
    described = ColumnSpec(renderer=_described, overflow="fold")
    return (
        (AsteriskColumn, names, described)
        if any(e.required for e in entries)
        else (names, described)
    )


def _described(entry: HelpEntry) -> Text:
    """What a flag does, what may be chosen, what holds without it, whether it must be given."""
    found = inline(_plain(entry.description))
    notes = [("choices", ", ".join(entry.choices or ())), ("default", entry.default or "")]
    for name, value in notes:
        if value:
            found.append(f" [{name}: {value}]", style=f"cyclopts.{name}")
    if entry.required:
        found.append(" [required]", style="cyclopts.required")
    return found
