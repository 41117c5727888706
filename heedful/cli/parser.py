"""The parser of a verb's arguments, built by cyclopts, and the help that it prints.

cyclopts would parse the text of each of a hundred flags as Markdown; `overview.prose` is quicker.
"""

from __future__ import annotations

import importlib
import keyword
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cyclopts import App
from cyclopts.argument import ArgumentCollection
from cyclopts.help import DefaultFormatter, HelpEntry, HelpPanel
from cyclopts.help.specs import AsteriskColumn, ColumnSpec, NameRenderer

import heedful

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

_MODULES = {
    **dict.fromkeys(("answer", "fill", "tag"), "encoder_verbs"),
    **dict.fromkeys(("import", "export", "merge"), "convert"),
    **dict.fromkeys(("ablate", "prune"), "heads"),
    **dict.fromkeys(("data check", "data clean", "data split", "data shard"), "data"),
    "plan": "training_plan",
    "presets": "info",
    "sweep": "compare",
}
"""Modules of the verbs whose module has another name."""

_NAME_SHARE = 0.35
"""Share of the terminal's width for the names of flags."""

_BORDERS, _GAP = 4, 2
"""Widths, in characters, of both borders of a panel and of the gap between columns."""


def build_app(verb: str) -> App:
    """Build the parser of one verb; this loads the verb's module."""
    return _app(App(name=verb.split()[-1]), verb)


def print_help(verb: str) -> None:
    """Print a verb's docstring and all of its flags."""
    explained = _Explained(
        name=verb.split()[-1], help_formatter=_HelpFormatter(column_specs=_columns)
    )
    _app(explained, verb).help_print(verb.split())


def function_behind(verb: str) -> Callable[..., Any]:
    """Load the function of a verb."""
    name = verb.replace("-", "_").replace(" ", "_")
    module = importlib.import_module(f"heedful.cli.{_MODULES.get(verb, name)}")
    # `import` is a keyword of Python, so its function is `import_`
    function: Callable[..., Any] = getattr(module, f"{name}_" if keyword.iskeyword(name) else name)
    return function


def _app(command: App, verb: str) -> App:
    command.default(function_behind(verb))
    app = App(
        name="heedful",
        version=heedful.__version__,
        help_format="plaintext",  # formatted by _HelpFormatter
        suppress_keyboard_interrupt=False,
    )
    group = app
    for word in verb.split()[:-1]:
        inner = App(name=word)
        group.command(inner)
        group = inner
    group.command(command)
    return app


class _Explained(App):
    """An app that collects its flags once, for both the usage line and the panels."""

    _collected: ArgumentCollection | None = None

    def assemble_argument_collection(self, **options: Any) -> ArgumentCollection:
        if self._collected is None:
            options["parse_docstring"] = True
            self._collected = super().assemble_argument_collection(**options)
        return self._collected


class _HelpFormatter(DefaultFormatter):
    """Panels of flags as cyclopts draws them, below a text drawn by `prose`."""

    def render_description(
        self, console: Console, options: ConsoleOptions, description: Any
    ) -> None:
        del options
        from heedful.cli.overview import prose

        console.print(prose(_plain(description)))

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        from heedful.cli.overview import inline

        super().__call__(
            console, options, panel.copy(description=inline(_plain(panel.description)))
        )


def _plain(text: Any) -> str:
    """Return the string that cyclopts has wrapped; empty for None."""
    return str(getattr(text, "primary_renderable", text or ""))


def _columns(
    console: Console, options: ConsoleOptions, entries: list[HelpEntry]
) -> tuple[ColumnSpec, ...]:
    """Return the columns of a panel, wide enough that no name of a flag is folded."""
    words = [word for entry in entries for label in entry.all_options for word in label.split()]
    longest = max(map(len, words), default=0)
    widest = round(max(_NAME_SHARE * console.width, min(longest, console.width / 2)))
    renderer = NameRenderer(max_width=widest)
    lines = (line for entry in entries for line in str(renderer(entry)).splitlines())
    width = min(widest, max(map(len, lines), default=0))
    asterisk = (AsteriskColumn,) if any(entry.required for entry in entries) else ()
    # Without a width, rich measures every cell, which took a tenth of the time.
    left = console.width - _BORDERS - len(asterisk) * (1 + _GAP) - width - _GAP
    names = ColumnSpec(renderer=renderer, style="cyan", width=width)
    return *asterisk, names, ColumnSpec(renderer=_description, overflow="fold", width=left)


def _description(entry: HelpEntry) -> Text:
    """Return the help of a flag with its choices, its default and a note if it is required."""
    from heedful.cli.overview import inline

    text = inline(_plain(entry.description))
    notes = [("choices", ", ".join(entry.choices or ())), ("default", entry.default or "")]
    for name, value in notes:
        if value:
            text.append(f" [{name}: {value}]", style=f"cyclopts.{name}")
    if entry.required:
        text.append(" [required]", style="cyclopts.required")
    return text
