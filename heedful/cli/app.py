"""The tree of commands, for the library that takes words apart and explains verbs."""

from __future__ import annotations

import keyword
from typing import TYPE_CHECKING

from cyclopts import App
from cyclopts.help import DefaultFormatter, HelpEntry
from cyclopts.help.specs import AsteriskColumn, ColumnSpec, DescriptionRenderer, NameRenderer

import heedful
from heedful.cli.verbs import SUMMARY, VERBS

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

# Of the terminal's width, what names may take.
_SHARE = 0.35


def build_app(verb: str = "") -> App:
    """The tree of commands.

    Args:
        verb: the one that will run; its own docstring is its help. The others show their summaries
            without being loaded.
    """
    app = App(
        name="heedful",
        help=SUMMARY,
        version=heedful.__version__,
        help_format="markdown",
        suppress_keyboard_interrupt=False,
    )
    for position, (name, summary) in enumerate(VERBS.items()):
        shown = None if name == verb else summary
        app.command(
            f"heedful.cli.{function_of(name)}:{function_of(name)}",
            name=name,
            help=shown,
            sort_key=position,
            help_formatter=DefaultFormatter(column_specs=_columns),
        )
    return app


def function_of(verb: str) -> str:
    """The name of a verb's function, and of the module it is in; `import` is a word of Python."""
    return f"{verb}_" if keyword.iskeyword(verb) else verb


def _columns(
    console: Console, options: ConsoleOptions, entries: list[HelpEntry]
) -> tuple[ColumnSpec, ...]:
    """The columns of a verb's help: wide enough that no flag is folded and can be copied."""
    words = [word for entry in entries for label in entry.all_options for word in label.split()]
    width = max(_SHARE * console.width, min(max(map(len, words), default=0), console.width / 2))
    names = ColumnSpec(
        renderer=NameRenderer(max_width=round(width)), style="cyan", max_width=round(width)
    )
    described = ColumnSpec(renderer=DescriptionRenderer(), overflow="fold")
    return (
        (AsteriskColumn, names, described)
        if any(e.required for e in entries)
        else (names, described)
    )
