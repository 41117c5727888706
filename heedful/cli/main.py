"""The entry point: find the verb, run it, report errors, return an exit status.

No slow module is imported here. The module of a verb is loaded when the verb is called, and torch
when the verb starts to work, so that `--help` answers at once. A user error is printed as one
paragraph on standard error; HEEDFUL_DEBUG=1 adds the traceback.
"""

from __future__ import annotations

import atexit
import errno
import gc
import io
import itertools
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import heedful
from heedful.errors import (
    RunError,
    TorchMissing,
    UserError,
    is_of_torch,
    show_warning,
    suggest,
)

DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130

GROUPS = {
    "Begin": {
        "demo": "Train a small translator in a few minutes, on generated dates, "
        "prices and measures.",
        "models": "List the trained models that come with Heedful.",
        "studio": "Explore models, runs and ideas in a browser.",
        "doctor": "Check versions, devices and the speed of each precision on this machine.",
    },
    "Train": {
        "train": "Train a translator from sentence pairs, or another model from text or images.",
        "presets": "List the named model sizes.",
        "plan": "Estimate memory, time and cost of training on many devices, and choose a layout.",
        "compare": "Train several configurations on the same data and budget, and compare them.",
        "sweep": "Train a configuration with several values of one setting, and compare them.",
        "merge": "Merge a low-rank adapter (LoRA) into its base model.",
    },
    "Translate": {
        "translate": "Translate a text, or many line by line.",
        "translate-file": "Translate the text of a document, and keep its format.",
        "serve": "Serve translators and language models over HTTP.",
        "check": "Check given translations.",
        "score": "Score given translations, or texts (log-probability).",
        "calibrate": "Fit a confidence estimate to a model's translations.",
        "shortlist": "Build a lexical shortlist from sentence pairs, for faster translation.",
    },
    "Other models": {
        "generate": "Continue text, transcribe sounds, or draw pictures for captions.",
        "fill": "Fill [MASK] in a text.",
        "classify": "Label texts, pairs of texts, or images.",
        "tag": "Label the words of texts.",
        "answer": "Answer questions with passages from given texts.",
        "embed": "Turn texts or images into vectors.",
        "act": "Let a model of token sequences act in a small world.",
    },
    "Measure": {
        "evaluate": "Score translations against references, and compare two systems.",
        "frontier": "Measure speed, memory and quality of a translator under many search settings.",
        "info": "Show a model's parameters, operations and memory.",
    },
    "Look inside": {
        "inspect": "Show the attention of a model for one text.",
        "heads": "Measure the attention of every head over a corpus.",
        "align": "Word-align sentence pairs.",
        "ablate": "Measure the loss of quality when parts of a model are removed.",
        "prune": "Prune the attention heads that a model needs least.",
    },
    "Data": {
        "data check": "Check sentence pairs for duplicates, misalignments, encoding "
        "errors and leaks.",
        "data clean": "Clean sentence pairs, and list the removed ones with the reason.",
        "data split": "Split sentence pairs into train, valid and test by source sentence.",
        "data shard": "Write corpora as compressed shards, which training streams.",
        "data world": "Draw episodes of a small world, as records for training.",
        "data midi": "Write the notes of records as MIDI files.",
        "data codes": "Write images as records of the codes of an autoencoder.",
        "data pictures": "Draw records of an autoencoder's codes.",
    },
    "Exchange": {
        "import": "Import a Hugging Face model.",
        "export": "Export a model to Hugging Face, CTranslate2, ONNX or GGUF, "
        "or an adapter to PEFT.",
    },
}
"""Summaries of the verbs, by what a person wants; in the order of the overview."""

VERBS = {verb: summary for verbs in GROUPS.values() for verb, summary in verbs.items()}

_HELP_FLAGS = frozenset(("--help", "-h"))
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}


def run() -> int:
    """Run the command line as the only work of a process.

    Returns:
        The exit status of `main`; the process must end with it.
    """
    # The handler is registered before PyTorch is loaded, so it runs after all other exit handlers.
    done: list[int] = []
    atexit.register(_exit_at_once, done)
    show_as_before, warnings.showwarning = warnings.showwarning, show_warning
    # Texts are read as UTF-8 everywhere; a code page of Windows or an older locale of Unix lacks
    # most scripts.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors=stream.errors)
    try:
        done.append(main())
    finally:
        warnings.showwarning = show_as_before
    return done[0]


def _exit_at_once(done: list[int]) -> None:
    """End the process without freeing all objects of PyTorch, which would take a sixth of a second.

    Args:
        done: exit status; empty after SystemExit or an error, which Python reports.
    """
    with suppress(OSError, ValueError):  # Python reports a failing flush as well
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        for status in done:
            os._exit(status)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: words after `heedful`; the arguments of this process if unset.

    Returns:
        The exit status: 0 done, 1 failed while running, 2 the request was wrong, 130 interrupted.
    """
    set_environment()
    words = normalize(sys.argv[1:] if arguments is None else arguments)
    wants_help = not _HELP_FLAGS.isdisjoint(itertools.takewhile(lambda word: word != "--", words))
    # `heedful --help train` also explains the verb.
    verb = find_verb([word for word in words if not wants_help or not word.startswith("-")])
    try:
        status = _run(verb, words, wants_help=wants_help)
        sys.stdout.flush()  # a full disk or a closed pipe is an error of the verb, not of the exit
    except (KeyboardInterrupt, Exception) as error:
        return exit_status(error, verb if verb in VERBS else "")
    return DONE if status is None else status


def find_verb(words: Sequence[str]) -> str:
    """Return the verb at the beginning of the words, such as `data check`, or the first word."""
    two = " ".join(words[:2])
    return two if two in VERBS else next(iter(words), "")


def set_environment() -> None:
    """Set environment variables that libraries read when loaded, unless the user has set them."""
    # Waiting OpenMP threads spin, which starves other work: on two cores with one other busy
    # process, training ran 30 times slower. The variable is read when torch is loaded.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    # oneDNN caches kernels of shapes that never recur, by default a thousand in each of two caches,
    # which take up to a gigabyte. The layers of a step need only a few dozen shapes.
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, "64")
    # Otherwise pydantic reads the metadata of every installed package at each start.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")


@contextmanager
def uncollected() -> Iterator[None]:
    """A context for imports, whose objects the garbage collector never scans."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


def _run(verb: str, words: list[str], *, wants_help: bool) -> int | None:
    if not verb:
        from heedful.cli.overview import print_overview

        print_overview(GROUPS)
        return 0
    if verb == "--version":
        print(heedful.__version__)
        return 0
    below = {name: summary for name, summary in VERBS.items() if name.startswith(f"{verb} ")}
    if below:
        return _only_first_word(verb, below, wants_help=wants_help)
    if verb not in VERBS:
        raise UserError(f"There is no command {verb!r}", remedy=suggest(verb, VERBS))
    if wants_help:
        gc.disable()  # the process is short-lived, and collection took a fifth of its time
        from heedful.cli.parser import print_help

        print_help(verb)  # prints the app's help without parsing the arguments
        return 0
    with uncollected():
        from heedful.cli.parser import build_app

        app = build_app(verb)
    result = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    return result if isinstance(result, int) else None


def _only_first_word(word: str, verbs: dict[str, str], *, wants_help: bool) -> int:
    """Print the verbs that begin with a word, or fail if no help was requested."""
    if not wants_help:
        raise UserError(
            f"`heedful {word}` needs a second word", remedy=f"Known: {', '.join(verbs)}"
        )
    from heedful.cli.overview import print_overview

    print_overview({"Commands": verbs})
    return 0


def normalize(words: Sequence[str]) -> list[str]:
    """Accept `--model.num_heads` for `--model.num-heads`, and `--json true` for `--json`.

    Settings are written as in TOML files, where names hold underscores and switches have values.
    """
    result: list[str] = []
    for position, word in enumerate(words):
        if word == "--":
            return [*result, *words[position:]]
        last = result[-1] if result else ""
        if word in ("true", "false") and last.startswith("--") and "=" not in last:
            result[-1] += f"={word}"
        elif word.startswith("--"):
            name, equals, value = word.partition("=")
            result.append(name.replace("_", "-") + equals + value)
        else:
            result.append(word)
    return result


def exit_status(error: KeyboardInterrupt | Exception, verb: str = "") -> int:
    """Report an error that ended a verb, and return the exit status of the process.

    Args:
        error: the exception that the verb raised.
        verb: name of the verb, for a hint at its help; "" if there is no verb.
    """
    if isinstance(error, KeyboardInterrupt):
        return _report("Interrupted.", INTERRUPTED)
    if isinstance(error, BrokenPipeError):  # as in `heedful translate … | head`, not an error
        _discard_standard_output()
        return FAILED
    if _is_misuse(error):
        help_command = " ".join(word for word in ("heedful", verb, "--help") if word)
        return _report(f"{_misuse(error)} See: {help_command}", WRONG)
    return report_error(error)


def _is_misuse(error: Exception) -> bool:
    """Return True for an error of cyclopts, which may not have been loaded."""
    library = sys.modules.get("cyclopts.exceptions")
    return library is not None and isinstance(error, library.CycloptsError)


def _misuse(error: Any) -> str:
    """Return what is wrong with the words after a verb, with a remedy where the parser has none."""
    kind = type(error).__name__
    if kind == "UnusedCliTokensError":
        words = " ".join(map(repr, error.unused_tokens))
        return f"Too many words: {words}. Files follow flags, and a text needs quotes."
    if kind == "UnknownOptionError":
        word = error.token.keyword or error.token.value
        if " " in word:  # no option has a space, and a list or a dialogue begins with a hyphen
            return f"{word!r} looks like an option. Put -- before a text that begins with a hyphen."
    if kind == "MissingArgumentError" and error.keyword is None and error.argument is not None:
        return f"{error.argument.name} is missing."
    return str(error)


def report_error(error: Exception) -> int:
    """Report an error as one paragraph on standard error; return its exit status."""
    known = as_user_error(error)
    if os.environ.get("HEEDFUL_DEBUG"):
        traceback.print_exception(error, file=sys.stderr)
    if known is not None:
        return _report(str(known), known.exit_status)
    return _report(
        f"Heedful failed in a way it should not: {type(error).__name__}: {error} "
        "Please report it, with the command and what it prints when HEEDFUL_DEBUG=1 is set.",
        FAILED,
    )


def as_user_error(error: Exception) -> UserError | None:
    """Return the error with a remedy for the user, or None for a bug of Heedful."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, OSError):
        return _from_system(error)
    # Verbs import PyTorch where they need it, so this is the one place that sees all of them.
    if is_of_torch(error):
        return TorchMissing()
    if isinstance(error, MemoryError) or _is_out_of_memory(error):
        return RunError(
            "There is not enough memory",
            remedy="Make batches smaller (--batch-tokens, or --data.batch-tokens for training), "
            "or use a smaller model",
        )
    return None


def _from_system(error: OSError) -> UserError:
    where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None
    reason = error.strerror or str(error)
    if error.errno in _NO_SPACE:
        return RunError(
            f"Cannot be written: {reason}", where=where, remedy="Free some space and try again"
        )
    if error.errno in _REFUSED:
        remedy = "Choose a place you may use, or change its permissions"
        return UserError(f"The system refused access: {reason}", where=where, remedy=remedy)
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return UserError(reason, where=where, remedy="Check the path")
    return RunError(f"The system reports: {reason}", where=where)


def _is_out_of_memory(error: Exception) -> bool:
    """Recognise PyTorch's errors by name and text, so that torch need not be imported."""
    if type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "not enough memory" in str(error)


def _discard_standard_output() -> None:
    """Discard output whose reader has gone, so that flushing it at exit does not fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError, ValueError):  # a replacement without a file descriptor
        os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _report(text: str, status: int) -> int:
    print(" ".join(text.split()), file=sys.stderr, flush=True)
    return status
