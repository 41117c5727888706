"""What it saves that sentences join a batch: `translate` in both ways, in turns.

    python benchmarks/joining.py --model RUN --data DIR [--rounds 5]

DIR holds multi30k/tok/val.lc.norm.tok.en.gz (or set HEEDFUL_DATA); RUN is any translator that reads
it, such as what `python benchmarks/multi30k.py` trained. The validation set is translated (beam 5)
in float32 and in 8 bits, in batches of 32 sentences and by positions, with continuous batching and
without: in each round both translate the same sentences, each round begins with the other one.
Prints a table and one JSON line, which also goes to RESULTS/joining/result.json. There is no bar.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from inside import read_lines
from report import new_parser, parse, say, write_result
from speed.turns import alternate, ratio, summary

from heedful.decode.pipeline import TranslationPipeline


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Sentences a second of the processor's time, in every precision and kind of batch."""
    corpus = Path(arguments.data) / "multi30k" / "tok" / "val.lc.norm.tok.en.gz"
    lines = read_lines(corpus)
    found: dict[str, Any] = {"sentences": len(lines)}
    for precision in ("fp32", "int8"):
        pipeline = TranslationPipeline.load(arguments.model, device="cpu", precision=precision)
        for name, size in (("batches of 32", 32), ("by positions", None)):
            told: dict[str, list[str]] = {}

            def turn(
                kind: str, size: int | None = size, told: Any = told, of: Any = pipeline
            ) -> float:
                started = time.process_time()
                told[kind] = of.translate(
                    lines, beam=5, batch_size=size, continuous_batching=kind == "with"
                )
                return len(lines) / (time.process_time() - started)

            turn("with")  # the first time, much is set up
            turns = {
                kind: lambda _, kind=kind, turn=turn: turn(kind) for kind in ("without", "with")
            }
            figures = alternate(turns, arguments.rounds, say)
            same = sum(map(str.__eq__, told["with"], told["without"]))
            found[f"{precision}, {name}"] = {
                **{kind: summary(each) for kind, each in figures.items()},
                "ratio": ratio(figures["with"], figures["without"]),
                "identical_percent": round(100 * same / len(lines), 2),
            }
            say(f"{precision}, {name}: {found[f'{precision}, {name}']}")
    return found


def main() -> None:
    """Measure, and write down what was found."""
    parser = new_parser(__doc__, rounds=5)
    arguments = parse(parser)
    if arguments is None:
        return
    found = measure(arguments)
    command = "python benchmarks/joining.py --model RUN --data DIR"
    command += f" --rounds {arguments.rounds} --threads {arguments.threads}"
    write_result(arguments.results, "joining", command, found)


if __name__ == "__main__":
    main()
