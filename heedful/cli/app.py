"""The tree of commands, for the library that takes words apart and explains verbs."""

from __future__ import annotations

import keyword

from cyclopts import App

import heedful
from heedful.cli.help import HelpFormatter, columns
from heedful.cli.verbs import SUMMARY, VERBS


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
        help_format="plaintext",  # which HelpFormatter draws
        suppress_keyboard_interrupt=False,
    )
    for position, (name, summary) in enumerate(VERBS.items()):
        shown = None if name == verb else summary
        app.command(
            f"heedful.cli.{function_of(name)}:{function_of(name)}",
            name=name,
            help=shown,
            sort_key=position,
            help_formatter=HelpFormatter(column_specs=columns),
        )
    return app


def function_of(verb: str) -> str:
    """The name of a verb's function, and of the module it is in; `import` is a word of Python."""
    return f"{verb}_" if keyword.iskeyword(verb) else verb
