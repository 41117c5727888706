"""Learning from examples in the prompt: how many it takes, by the size of the model.

    python benchmarks/in_context.py [--widths 16 32 64 128] [--seeds 1 2 3]

A document is a line of examples of one rule, such as `abc>cba;dfe>efd;`. What the rule is, the
examples alone tell. There are four kinds:

- `copy` and `reverse`: the word as it is, or backwards; nothing but the examples says which.
- `dates`: a day from one way of writing it to another, by one of 26 pairs of ways. Four further
  pairs of the same ways are in no training document.
- `cipher`: each letter becomes another one, by a table that is drawn for each document: what a
  letter becomes can only be found where it stood before.

Measured is the share of answers that are right to the letter with k examples before the question.
Everything goes through the `heedful` command.
"""

from __future__ import annotations

import datetime
import json
import random
import string
from collections.abc import Callable, Iterator
from datetime import UTC
from itertools import permutations, product
from pathlib import Path
from statistics import mean
from typing import Any

from driver import (
    HERE,
    heedful,
    hide_paths,
    new_parser,
    parse,
    processor_seconds,
    train,
    write_result,
)
from tables import markdown_table

NAME = "in-context"
SETTINGS = HERE / "in_context" / "decoder.toml"
SHOTS = (0, 1, 2, 4, 8)
CHARTED = 4
"""Examples before the questions of the chart."""
KINDS = ("copy", "reverse", "dates", "dates held out", "cipher")
EXAMPLES = 12
"""Examples of a training document."""
QUESTIONS = 200
"""Questions of each kind, the same for every number of examples."""
COUNTS = {"train": 40_000, "valid": 400}
WAYS = ("%d.%m.%Y", "%Y-%m-%d", "%m/%d/%y", "%d %b %Y", "%b %d, %y", "%Y%m%d")
HELD_OUT = ((0, 1), (2, 3), (4, 0), (5, 2))
"""Pairs of ways, from and to, of which no training document has an example."""

Rule = Callable[[random.Random], tuple[str, str]]


def main() -> None:
    """Write the documents, train each width with each seed, ask, write the results."""
    parser = new_parser(__doc__)
    parser.set_defaults(data=HERE)  # the documents are made here
    parser.add_argument("--widths", nargs="+", type=int, default=[16, 32, 64, 128])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    arguments = parse(parser)
    started = datetime.datetime.now(UTC)
    out = arguments.results / NAME
    out.mkdir(parents=True, exist_ok=True)
    runs = arguments.run or Path("runs") / NAME
    runs.mkdir(parents=True, exist_ok=True)
    files = write_documents(runs)
    questions = list(ask(random.Random(3)))
    # Seeds in the outer loop: a benchmark that is stopped has every width with the first of them.
    for seed, width in product(arguments.seeds, arguments.widths):
        name = f"{width}-{seed}"
        kept, log = out / f"{name}.json", out / f"{name}.log"
        if not kept.exists():
            before = processor_seconds()
            train(
                runs / name, SETTINGS, files, {"seed": seed, **shape(width)}, arguments.extra, log
            )
            minutes = round((processor_seconds() - before) / 60, 1)
            hide_paths(log, {runs: "RUNS"})
            row = {"width": width, "seed": seed, "processor_minutes": minutes}
            row["right"] = answered(runs / name, questions)
            kept.write_text(json.dumps(row) + "\n", encoding="utf-8")
            print(kept.read_text(encoding="utf-8"), end="", flush=True)
        # Of every run that is kept, as widths and seeds may be asked for one by one.
        found = [read_json(file) for file in out.glob("*-*.json")]
        rows = sorted(found, key=lambda row: (row["width"], row["seed"]))
        write_result(out, "python benchmarks/in_context.py", arguments.extra, started, runs=rows)
        report(rows, out)


def report(rows: list[dict[str, Any]], out: Path) -> None:
    """Write a table of all figures, and a chart of those with four examples by width."""
    from heedful.apps import charts

    widths = sorted({row["width"] for row in rows})
    table = [["rule", "width", "seeds", *(f"k = {shots}" for shots in SHOTS)]]
    series: dict[str, list[charts.Estimate]] = {}
    for kind, width in product(KINDS, widths):
        seeds = [row["right"][kind] for row in rows if row["width"] == width]
        percent = {shots: [100 * each[str(shots)] for each in seeds] for shots in SHOTS}
        cells = [cell(percent[shots]) for shots in SHOTS]
        table.append([kind, str(width), str(len(seeds)), *cells])
        shown = percent[CHARTED]
        estimate = charts.Estimate(width, mean(shown), min(shown), max(shown))
        series.setdefault(kind, []).append(estimate)
    (out / "table.md").write_text(markdown_table(table), encoding="utf-8")
    chart = charts.bands(
        series,
        x="width of the model",
        y="right answers, percent",
        title=f"Answers after {CHARTED} examples in the prompt",
        more="Means over seeds, with the lowest and the highest",
        log=True,
    )
    charts.save(chart, out / "by-width.svg")


def cell(values: list[float]) -> str:
    """Return the mean of the seeds with the lowest and the highest.

    No interval of Student's: a seed has all answers right or none, which is no normal spread.
    """
    spread = f" ({min(values):.1f} to {max(values):.1f})" if len(values) > 1 else ""
    return f"{mean(values):.1f}{spread}"


def read_json(file: Path) -> dict[str, Any]:
    """Return the object of a file."""
    return dict(json.loads(file.read_text(encoding="utf-8")))


def shape(width: int) -> dict[str, Any]:
    """Return the settings of a model: a wider one is deeper, too."""
    layers = 2 if width < 64 else 4
    sizes = {"width": width, "feedforward": 4 * width, "decoder-layers": layers}
    return {f"model.{name}": size for name, size in sizes.items()}


def write_documents(runs: Path) -> dict[str, list[str]]:
    """Write the documents of each part, and return the files."""
    files = {}
    for seed, (part, count) in enumerate(COUNTS.items()):
        draw = random.Random(seed)
        path = runs / f"{part}.txt"
        with path.open("w", encoding="utf-8") as file:
            for _ in range(count):
                rule = new_rule(draw, draw.choice(("copy", "reverse", "dates", "cipher")))
                file.write("".join(example(*rule(draw)) for _ in range(EXAMPLES)) + "\n")
        files[part] = [str(path)]
    return files


def new_rule(draw: random.Random, kind: str) -> Rule:
    """Return a rule of a kind: a function that draws a question and its answer."""
    if kind in ("copy", "reverse"):
        step = 1 if kind == "copy" else -1
        return lambda draw: (word := a_word(draw), word[::step])
    if kind == "cipher":
        table = str.maketrans(LETTERS, "".join(draw.sample(LETTERS, len(LETTERS))))
        return lambda draw: (word := a_word(draw), word.translate(table))
    held_out = kind == "dates held out"
    pairs = [p for p in permutations(range(len(WAYS)), 2) if (p in HELD_OUT) == held_out]
    source, target = draw.choice(pairs)
    return lambda draw: (
        (day := a_day(draw)).strftime(WAYS[source]),
        day.strftime(WAYS[target]),
    )


LETTERS = string.ascii_lowercase[:10]
"""Letters of words: few, so that a cipher's table is seen after some examples."""


def a_word(draw: random.Random) -> str:
    """Return three to five different letters."""
    return "".join(draw.sample(LETTERS, draw.randint(3, 5)))


def a_day(draw: random.Random) -> datetime.date:
    """Return a day of the hundred years whose last two digits tell them apart."""
    return datetime.date(1950, 1, 1) + datetime.timedelta(draw.randrange(36_525))


def example(question: str, answer: str) -> str:
    """Return an example as text."""
    return f"{question}>{answer};"


def ask(draw: random.Random) -> Iterator[tuple[str, int, str, str]]:
    """Yield kind, number of examples, prompt, and answer of each question.

    A question is asked with each number of examples, the first ones of the same eight.
    """
    for kind in KINDS:
        for _ in range(QUESTIONS):
            rule = new_rule(draw, kind)
            shown = [rule(draw) for _ in range(max(SHOTS))]
            question, answer = rule(draw)
            if kind == "cipher":
                # Letters that no example shows could only be guessed.
                seen = set("".join(word for word, _ in shown))
                while not set(question) <= seen:
                    question, answer = rule(draw)
            for shots in SHOTS:
                before = "".join(example(*each) for each in shown[:shots])
                yield kind, shots, f"{before}{question}>", answer


def answered(run: Path, questions: list[tuple[str, int, str, str]]) -> dict[str, dict[str, float]]:
    """Return the share of right answers by kind and number of examples."""
    prompts, answers = run / "prompts.txt", run / "answers.txt"
    prompts.write_text("".join(f"{prompt}\n" for _, _, prompt, _ in questions), encoding="utf-8")
    flags = ["--stop", ";", "--max-length", "16"]
    heedful(["generate", str(run), "-i", str(prompts), "-o", str(answers), *flags])
    found: dict[str, dict[int, list[bool]]] = {}
    lines = answers.read_text(encoding="utf-8").splitlines()
    for (kind, shots, _, answer), line in zip(questions, lines, strict=True):
        found.setdefault(kind, {}).setdefault(shots, []).append(line == answer)
    return {
        kind: {str(shots): sum(right) / len(right) for shots, right in by_shots.items()}
        for kind, by_shots in found.items()
    }


if __name__ == "__main__":
    main()
