"""A verb's command, for the library that takes words apart and explains flags."""

from __future__ import annotations

import importlib
import keyword
from typing import Any

from cyclopts import App
from cyclopts.argument import ArgumentCollection

import heedful


def build_app(verb: str) -> App:
    """The command line of one verb, whose module is loaded."""
    return _app(App(name=verb), verb)


def print_help(verb: str) -> None:
    """What a verb does and all of its flags."""
    from heedful.cli.help import HelpFormatter, columns

    explained = _Explained(name=verb, help_formatter=HelpFormatter(column_specs=columns))
    _app(explained, verb).help_print([verb])


class _Explained(App):
    """A verb whose flags are gathered once, for the line of usage and the panels alike."""

    _gathered: ArgumentCollection | None = None

    def assemble_argument_collection(self, **options: Any) -> ArgumentCollection:
        if self._gathered is None:
            options["parse_docstring"] = True
            self._gathered = super().assemble_argument_collection(**options)
        return self._gathered


def _app(command: App, verb: str) -> App:
    name = function_of(verb)
    command.default(getattr(importlib.import_module(f"heedful.cli.{name}"), name))
    app = App(
        name="heedful",
        version=heedful.__version__,
        help_format="plaintext",  # which HelpFormatter draws
        suppress_keyboard_interrupt=False,
    )
    app.command(command)
    return app


def function_of(verb: str) -> str:
    """The name of a verb's function, and of the module it is in; `import` is a word of Python."""
    return f"{verb}_" if keyword.iskeyword(verb) else verb
