"""The verbs of the command line, and what a person sees who asks for help without naming one.

Of all calls this is the first that a newcomer makes, so it loads nothing but what draws it.
"""

from __future__ import annotations

from heedful.cli.prose import prose

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

_SUMMARY = """Train a translator on your own sentence pairs, use it, measure it.

`heedful demo` shows all of it in about a minute; `heedful VERB --help` explains a verb by example.
"""

_FLAGS = {"--help (-h)": "Display this message and exit.", "--version": "Display the version."}


def print_overview() -> None:
    """All verbs, with what they do."""
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
