"""What alignments cost: `translate` with them and without, in turns.

    python benchmarks/alignment_cost.py --model RUN --data DIR [--sentences 200] [--rounds 7]

DIR holds multi30k/tok/val.lc.norm.tok.en.gz (or set HEEDFUL_DATA); RUN is any translator that reads
it, such as what `python benchmarks/multi30k.py` trained. In each round both translate the same
sentences, and each round begins with the other one. Prints a table and one JSON line, which also
goes to RESULTS/alignment-cost/result.json. The bar is 10 % more time in the median round. Where
other programs keep the processor busy, the seconds that it worked tell more than those on the
clock, so both are there.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from inside import read_lines
from report import new_parser, parse, write_result
from speed.turns import alternate, ratio, summary

from heedful.pipelines.translation import TranslationPipeline

MOST_PERCENT = 10
CONTESTANTS = {"without": False, "with": True}
CLOCKS = {"seconds": time.perf_counter, "processor_seconds": time.process_time}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds of both in every round, and their ratios."""
    corpus = Path(arguments.data) / "multi30k" / "tok" / "val.lc.norm.tok.en.gz"
    lines = read_lines(corpus)[: arguments.sentences]
    pipeline = TranslationPipeline.load(arguments.model, device="cpu")
    worked: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    said: dict[str, list[str]] = {}

    def turn(name: str) -> float:
        starts = [clock() for clock in CLOCKS.values()]
        found = pipeline.translate(lines, alignment=CONTESTANTS[name])
        passed, own = (c() - s for c, s in zip(CLOCKS.values(), starts, strict=True))
        worked[name].append(own)
        said[name] = [str(each) for each in found]
        return passed

    for name in CONTESTANTS:  # the first time, much is set up
        turn(name)
        worked[name].clear()
    passed = alternate(
        {name: lambda _, name=name: turn(name) for name in CONTESTANTS},
        arguments.rounds,
        lambda text: print(text, file=sys.stderr),
    )
    assert said["with"] == said["without"], "alignments changed a translation"
    found: dict[str, Any] = {"sentences": len(lines)}
    for clock, figures in zip(CLOCKS, (passed, worked), strict=True):
        found[clock] = {name: summary(runs) for name, runs in figures.items()}
        found[clock]["ratio"] = ratio(figures["with"], figures["without"])
    found["holds"] = found["seconds"]["ratio"]["median"] <= 1 + MOST_PERCENT / 100
    return found


def show(found: dict[str, Any]) -> None:
    """The medians as a table, on standard error."""
    print(
        f"{'':<20}{'without':>10}{'with':>10}{'ratio':>10}{'from':>10}{'to':>10}", file=sys.stderr
    )
    for clock in CLOCKS:
        own = found[clock]
        numbers = [own[name]["median"] for name in ("without", "with", "ratio")]
        numbers += [own["ratio"][end] for end in ("lowest", "highest")]
        row = "".join(f"{number:>10.3f}" for number in numbers)
        print(f"{clock.replace('_', ' '):<20}{row}", file=sys.stderr)


def main() -> None:
    """Measure, and write down what was found."""
    parser = new_parser(__doc__, rounds=7)
    parser.add_argument("--sentences", type=int, default=200)
    arguments = parse(parser)
    if arguments is None:
        return
    found = measure(arguments)
    show(found)
    command = "python benchmarks/alignment_cost.py --model RUN --data DIR"
    command += f" --sentences {arguments.sentences} --rounds {arguments.rounds}"
    command += f" --threads {arguments.threads}"
    found = {"most_percent": MOST_PERCENT, **found}
    write_result(arguments.results, "alignment-cost", command, found)


if __name__ == "__main__":
    main()
