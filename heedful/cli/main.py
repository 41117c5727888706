"""The entry point: finds the verb, runs it, tells what goes wrong and returns a status.

Nothing heavy is imported here: each verb's module is loaded when that verb is called for, and torch
when it starts to work, so that `--help` answers at once.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import keyword
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cyclopts import App
from cyclopts.help import DefaultFormatter, HelpEntry
from cyclopts.help.specs import AsteriskColumn, ColumnSpec, DescriptionRenderer, NameRenderer

import heedful
from heedful.cli.failures import guarded
from heedful.errors import UserError, suggest

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions

VERBS = {
    "demo": "Train on generated dates, prices and measures in about a minute, and translate.",
    "train": "Train a translator from sentence pairs, or a model of text.",
    "translate": "Translate text, a line at a time.",
    "shortlist": "Learn which words a translator may choose among, for faster translations.",
    "generate": "Continue text with a language model.",
    "fill": "What may stand where a text has [MASK].",
    "classify": "Label texts, pairs of texts, or images.",
    "tag": "Label the words of texts.",
    "answer": "Find the answers to questions in texts.",
    "evaluate": "Score translations against references, and compare two systems.",
    "score": "How probable a model finds given translations.",
    "import": "Read a Hugging Face model directory and write it as Heedful's.",
    "merge": "Put what a low-rank run learned into the model it began with.",
    "export": "Write a model as a directory that another project loads.",
    "inspect": "Show what a model attends to.",
    "heads": "What every head of a model looks at, over a corpus.",
    "ablate": "What taking parts of a model away costs.",
    "prune": "A smaller and faster model, without the heads it needs least.",
    "align": "Which word of a translation came from which word of its source.",
    "info": "What a model is made of and what it costs.",
    "presets": "List the named model sizes.",
    "studio": "Look at models, runs and ideas in a browser.",
    "doctor": "Check this machine: versions, devices, what precision pays.",
}

# Of the terminal's width, what names may take.
_SHARE = 0.35

_HELP = """Train a translator on your own sentence pairs, use it, measure it.

`heedful demo` shows all of it in about a minute; `heedful VERB --help` explains a verb by example.
"""


def build_app(verb: str = "") -> App:
    """The tree of commands.

    Args:
        verb: the one that will run; its own docstring is its help. The others show their summaries
            without being loaded.
    """
    app = App(
        name="heedful",
        help=_HELP,
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: words after `heedful`; those of this process if unset.

    Returns:
        The exit status: 0 done, 1 failed while running, 2 the request was wrong, 130 interrupted.
    """
    set_environment()
    if arguments is None:  # a process that ends with this call: all its memory is given back then
        atexit.register(gc.freeze)
    words = normalize(sys.argv[1:] if arguments is None else arguments)
    verb = words[0] if words and not words[0].startswith("-") else ""
    return guarded(lambda: _run(verb, words), verb if verb in VERBS else "")


_HELP_FLAGS = frozenset(("--help", "-h"))


def set_environment() -> None:
    """What libraries are told before they are loaded; what a person set stays."""
    # Threads that wait spin, by default for longer than a busy machine can afford: on two cores
    # with one other busy process training ran 30 times slower. Read when torch is loaded, later.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    # Kernels kept ready for shapes that do not come again: a thousand by default in each of two
    # caches, a gigabyte in the end. A step's layers share those of a few dozen shapes.
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, "64")
    # Or the library of settings would read what every installed package says of itself, each time.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


def _run(verb: str, words: list[str]) -> int | None:
    if verb and verb not in VERBS:
        raise UserError(f"There is no command {verb!r}", remedy=suggest(verb, VERBS))
    app = build_app(verb)
    if verb and not _HELP_FLAGS.isdisjoint(itertools.takewhile(lambda word: word != "--", words)):
        # As the app would, but for taking its arguments apart first, and without looking for
        # garbage among what is thrown away at once: a fifth of the time.
        gc.disable()
        app.help_print([verb])
        return 0
    result = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    return result if isinstance(result, int) else None


def normalize(words: Sequence[str]) -> list[str]:
    """Accept `--model.num_heads` for `--model.num-heads`, and `--json true` for `--json`.

    Settings are written as in TOML files, where names hold underscores and switches have values.
    """
    result: list[str] = []
    for position, word in enumerate(words):
        if word == "--":
            return [*result, *words[position:]]
        if word in ("true", "false") and result and _is_bare_flag(result[-1]):
            result[-1] += f"={word}"
        elif word.startswith("--"):
            name, equals, value = word.partition("=")
            result.append(name.replace("_", "-") + equals + value)
        else:
            result.append(word)
    return result


def _is_bare_flag(word: str) -> bool:
    return word.startswith("--") and "=" not in word
