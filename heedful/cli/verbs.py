"""The verbs of the command line, and the overview that `heedful --help` prints.

`heedful --help` is a newcomer's first call, so this module loads nothing but what draws the text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

VERBS = {
    "demo": "Train on generated dates, prices and measures in about a minute, and translate.",
    "train": "Train a translator from sentence pairs, or another model from text or images.",
    "translate": "Translate text line by line.",
    "shortlist": "Learn a lexical shortlist from sentence pairs, for faster translation.",
    "generate": "Continue text with a language model.",
    "fill": "Fill [MASK] in a text.",
    "classify": "Label texts, pairs of texts, or images.",
    "tag": "Label the words of texts.",
    "answer": "Answer questions with passages of given texts.",
    "evaluate": "Score translations against references, and compare two systems.",
    "score": "Score given translations (log-probability).",
    "import": "Convert a Hugging Face model directory to a Heedful one.",
    "merge": "Merge a low-rank adapter (LoRA) into its base model.",
    "export": "Convert a model for another library: Hugging Face, CTranslate2 or ONNX.",
    "inspect": "Show the attention of a model for one text.",
    "heads": "Measure the attention of every head over a corpus.",
    "ablate": "Measure the loss of quality when parts of a model are removed.",
    "prune": "Remove the attention heads that a model needs least.",
    "align": "Word-align sentence pairs.",
    "info": "Show a model's parameters, operations and memory.",
    "presets": "List the named model sizes.",
    "studio": "Explore models, runs and ideas in a browser.",
    "doctor": "Check this machine: versions, devices and speed of each precision.",
}

_SUMMARY = """Train a translator on your own sentence pairs, use it, measure it.

`heedful demo` shows all of it in about a minute; `heedful VERB --help` explains a verb by example.
"""

_FLAGS = {"--help (-h)": "Display this message and exit.", "--version": "Display the version."}

_CODE = "bold cyan"


def print_overview() -> None:
    """Print all verbs with their summaries."""
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    console.print("Usage: heedful COMMAND\n", style="bold")
    console.print(prose(_SUMMARY))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    for name, summary in {**VERBS, **_FLAGS}.items():
        table.add_row(name, Text(summary))
    console.print(Panel(table, title="Commands", title_align="left"))


def prose(text: str) -> Text:
    """Format a docstring for help: paragraphs whose lines run on, indented blocks, `code`.

    Docstrings use no more of Markdown than that, and a full parser is slow to load and to run.
    """
    from rich.text import Text

    result = Text()
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        lines = block.splitlines()
        if all(line.startswith("    ") for line in lines):
            result.append("\n".join(line[2:] for line in lines), style=_CODE)
        else:
            result.append_text(inline(" ".join(line.strip() for line in lines)))
        result.append("\n\n")
    result.right_crop(1)
    return result


def inline(text: str) -> Text:
    """Format a line of text, in which `code` stands between backticks."""
    from rich.text import Text

    result = Text()
    for position, part in enumerate(re.split(r"`([^`]+)`", text)):
        result.append(part, style=_CODE if position % 2 else None)
    return result
