"""Train a folder of configurations with several seeds each, and measure all on held-out data.

    python benchmarks/compare_group.py bottleneck --data DIR    Multi30k, quality by source length
    python benchmarks/compare_group.py equal_cost --data DIR    characters, bits per byte
    python benchmarks/compare_group.py equal_cost --corpus wikitext2 --data DIR

DIR holds multi30k/raw, tinyshakespeare and wikitext2 (or set HEEDFUL_DATA). Every .toml file of
benchmarks/compare/GROUP is a variant. `heedful compare` trains them; an interrupted run goes on
when the same command is given again. Flags of heedful compare may follow after --, such as:
-- --seeds 1 --max-steps 200
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from driver import HERE, heedful, new_parser, parse
from machine import describe_machine


class Corpus(NamedTuple):
    """Files of a group, as flags of `heedful compare`, and of `heedful evaluate` for each run."""

    train: list[str]
    valid: list[str]
    measure: list[str]


def main() -> None:
    """Compare, measure every run, and write tables."""
    arguments = _parse()
    started = datetime.now(UTC)
    name = arguments.group.replace("_", "-")
    name += "" if arguments.corpus == "shakespeare" else f"-{arguments.corpus}"
    out = arguments.results / f"compare-{name}"
    run = arguments.run or Path("runs") / f"compare-{name}"
    out.mkdir(parents=True, exist_ok=True)
    run.mkdir(parents=True, exist_ok=True)
    corpus = _corpus(arguments, run)
    configs = sorted((HERE / "compare" / arguments.group).glob("*.toml"))
    words = ["compare", *map(str, configs), "--out", str(run), "--train", *corpus.train]
    heedful([*words, "--valid", *corpus.valid, *arguments.extra])
    table = json.loads((run / "table.json").read_text(encoding="utf-8"))
    result = {
        "benchmark": f"compare-{name}",
        "command": f"python benchmarks/compare_group.py {arguments.group} --data DIR",
        "extra": arguments.extra,
        "started": started.isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "comparison": {key: table[key] for key in ("budget", "seeds", "scores", "variants")},
        "measured": [
            {"variant": each["variant"], "seed": each["seed"], **_measure(run, each, corpus)}
            for each in table["runs"]
            if each["state"] == "finished"
        ],
    }
    text = json.dumps(result, indent=2, ensure_ascii=False) + "\n"
    (out / "result.json").write_text(text, encoding="utf-8")
    for file in ("table.md", "page.html"):
        if (run / file).exists():
            shutil.copyfile(run / file, out / file)
    print((out / "table.md").read_text(encoding="utf-8"))


def _parse() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("group", choices=["bottleneck", "equal_cost"])
    parser.add_argument("--corpus", choices=["shakespeare", "wikitext2"], default="shakespeare")
    return parse(parser)


def _corpus(arguments: argparse.Namespace, run: Path) -> Corpus:
    data: Path = arguments.data
    if arguments.group == "bottleneck":
        folder = data / "multi30k" / "raw"
        train, valid, test = (
            [str(folder / f"{part}.{language}.gz") for language in ("en", "de")]
            for part in ("train", "val", "test_2016_flickr")
        )
        measure = ["--source", test[0], "--reference", test[1], "--by-length"]
        return Corpus(train, valid, [*measure, "--length-bins", "5", "10", "15", "20", "25"])
    parts = {name: run / f"{name}.txt" for name in ("train", "valid", "test")}
    if arguments.corpus == "wikitext2":
        for name, path in parts.items():
            with gzip.open(data / "wikitext2" / f"{name}.txt.gz", "rt", encoding="utf-8") as file:
                path.write_text(file.read(), encoding="utf-8")
    else:
        text = (data / "tinyshakespeare" / "input.txt").read_text(encoding="utf-8")
        ends = [0, int(0.8 * len(text)), int(0.9 * len(text)), len(text)]
        for path, start, end in zip(parts.values(), ends, ends[1:], strict=False):
            path.write_text(text[start:end], encoding="utf-8")
    measure = ["--text", str(parts["test"])]
    return Corpus([str(parts["train"])], [str(parts["valid"])], measure)


def _measure(run: Path, each: dict[str, Any], corpus: Corpus) -> dict[str, Any]:
    """What `heedful evaluate` says of one run on the test set."""
    directory = run / "runs" / each["variant"] / f"seed-{each['seed']}"
    found = json.loads(heedful(["evaluate", str(directory), *corpus.measure, "--json"]))
    return {key: found[key] for key in ("scores", "by_length", "seconds") if key in found}


if __name__ == "__main__":
    main()
