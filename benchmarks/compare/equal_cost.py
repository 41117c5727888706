"""Quality at equal cost: every attention and rival, of the same size, after as many updates.

    python benchmarks/compare/equal_cost.py shakespeare --data DIR
    python benchmarks/compare/equal_cost.py wikitext2 --data DIR -- --seeds 1

Language models of characters, in windows of 256, one for each file of the folder equal_cost here,
of 0.8 million numbers within 5 %. DIR holds tinyshakespeare and wikitext2 (or set HEEDFUL_DATA).
`heedful compare` trains them, several seeds each (flags for it after --); `heedful evaluate`
measures each on the test text: bits per character, and the time of an update beside it. An
interrupted run goes on when the same command is given again.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import statistics
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from driver import compare, heedful, new_parser, parse  # noqa: E402
from machine import describe_machine  # noqa: E402
from tables import markdown_table, mean_cell  # noqa: E402

PARTS = ("train", "valid", "test")
MOST = {"train": None, "valid": 100_000, "test": 300_000}
"""Characters of each part of WikiText-2."""


def main() -> None:
    """Compare, measure every run on the test text, and write tables."""
    arguments = _parse()
    started = datetime.now(UTC)
    out = arguments.results / f"equal-cost-{arguments.corpus}"
    run = arguments.run or Path("runs") / f"equal-cost-{arguments.corpus}"
    for folder in (out, run):
        folder.mkdir(parents=True, exist_ok=True)
    files = _split(arguments.corpus, arguments.data, run)
    configs = sorted((HERE / "equal_cost").glob("*.toml"))
    words = ["compare", *map(str, configs), "--train", str(files["train"])]
    table = compare([*words, "--valid", str(files["valid"]), *arguments.extra], run)
    measured = [
        {"variant": each["variant"], "seed": each["seed"], **_measure(run, each, files["test"])}
        for each in table["runs"]
        if each["state"] == "finished"
    ]
    result = {
        "benchmark": f"equal-cost-{arguments.corpus}",
        "command": f"python benchmarks/compare/equal_cost.py {arguments.corpus} --data DIR",
        "extra": arguments.extra,
        "started": started.isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "comparison": {key: table[key] for key in ("budget", "seeds", "variants")},
        "measured": measured,
    }
    text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
    (out / "result.json").write_text(text, encoding="utf-8")
    (out / "table.md").write_text(_markdown(table["variants"], measured), encoding="utf-8")
    print(_markdown(table["variants"], measured))


def _parse() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("corpus", choices=["shakespeare", "wikitext2"])
    return parse(parser)


def _split(corpus: str, data: Path, run: Path) -> dict[str, Path]:
    """Write the text of each part."""
    files = {part: run / f"{part}.txt" for part in PARTS}
    if corpus == "shakespeare":
        text = (data / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")
        ends = [0, int(0.8 * len(text)), int(0.9 * len(text)), len(text)]
        texts = [text[start:end] for start, end in itertools.pairwise(ends)]
    else:
        texts = []
        for part in PARTS:
            path = data / "wikitext2" / f"{part}.txt.gz"
            with gzip.open(path, "rt", encoding="utf-8") as file:
                texts.append(file.read(MOST[part]))
    for part, text in zip(PARTS, texts, strict=True):
        files[part].write_text(text, encoding="utf-8")
    return files


def _measure(run: Path, each: dict[str, Any], text: Path) -> dict[str, Any]:
    """What `heedful evaluate` says of one run."""
    directory = run / "runs" / each["variant"] / f"seed-{each['seed']}"
    found = json.loads(heedful(["evaluate", str(directory), "--text", str(text), "--json"]))
    return {key: found[key] for key in ("scores", "seconds")}


def _markdown(variants: list[dict[str, Any]], measured: list[dict[str, Any]]) -> str:
    """A line for each system, the best first."""
    lines = []
    for variant in variants:
        mine = [m["scores"] for m in measured if m["variant"] == variant["name"]]
        bits = [each["bits_per_character"] for each in mine]
        numbers = f"{variant['parameters']:,}"
        update = 1000 * variant["seconds"] / variant["steps"]
        cells = [variant["name"], mean_cell(bits, 3), numbers, f"{update:.0f}"]
        lines.append((statistics.fmean(bits), cells))
    head = ["system", "bits per character", "numbers", "ms an update"]
    return markdown_table([head, *(cells for _, cells in sorted(lines))])


if __name__ == "__main__":
    main()
