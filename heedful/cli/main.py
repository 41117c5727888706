"""The entry point: finds the verb, runs it, tells what goes wrong and returns a status.

Nothing heavy is imported here: each verb's module is loaded when that verb is called for, and torch
when it starts to work, so that `--help` answers at once.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
from collections.abc import Sequence

import heedful
from heedful.cli.failures import guarded
from heedful.cli.verbs import VERBS, print_overview
from heedful.errors import UserError, suggest


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: words after `heedful`; those of this process if unset.

    Returns:
        The exit status: 0 done, 1 failed while running, 2 the request was wrong, 130 interrupted.
    """
    set_environment()
    words = normalize(sys.argv[1:] if arguments is None else arguments)
    asks = not _HELP_FLAGS.isdisjoint(itertools.takewhile(lambda word: word != "--", words))
    # `heedful --help train` explains that verb too.
    verb = next((word for word in words if not asks or not word.startswith("-")), "")
    return guarded(lambda: _run(verb, words, asks=asks), verb if verb in VERBS else "")


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


def _run(verb: str, words: list[str], *, asks: bool) -> int | None:
    if not verb:
        print_overview()
        return 0
    if verb == "--version":
        print(heedful.__version__)
        return 0
    if verb not in VERBS:
        raise UserError(f"There is no command {verb!r}", remedy=suggest(verb, VERBS))
    if asks:
        gc.disable()  # what is thrown away at once need not be looked through: a fifth of the time
        from heedful.cli.app import print_help

        print_help(verb)  # as the app would, but for taking its arguments apart first
        return 0
    from heedful.memory import uncollected

    with uncollected():
        from heedful.cli.app import build_app

        app = build_app(verb)
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
