"""What cleaning is worth: BLEU of a small translator of noisy, cleaned and clean Tatoeba.

    python benchmarks/filter.py --data DIR [--run RUNS/filter]

DIR holds tatoeba/{en-de,en-fr}.tsv.gz (or set HEEDFUL_DATA). English-German pairs are split by
source. 40,000 real training pairs are `clean`; with 40,000 other ones that are damaged, in equal
shares shuffled, in a third language, swapped, truncated, copied and in a wrong encoding, they are
`noisy`; `heedful data clean --languages en de` leaves of those what is `cleaned`. A translator
(benchmarks/filter.toml) is trained on each for as many updates, with two seeds, and translates the
test set of 1,000 pairs, beam 4. Runs that are done are not done again, and one that was stopped
goes on. Writes RESULTS/filter/: result.json, table.md and the log of each training.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import shutil
from pathlib import Path
from typing import Any

from damage import KINDS, Pair, changed_number, repeated
from data_check import CORPORA
from driver import HERE, heedful, hide_paths, new_parser, parse, train, translation_scores
from machine import describe_machine
from tables import markdown_table, mean_cell

REAL = DAMAGED = 40_000
SEEDS = (1, 2)
TEST = 1000
SEARCH = ("--beam", "4", "--length-penalty", "1.0")
NOISE = [kind for kind in KINDS if kind not in (changed_number, repeated)]


def prepare(data: Path, run: Path) -> dict[str, Any]:
    """Write the three training sets; their sizes, and what cleaning removed."""
    report = run / "data.json"
    if report.exists():
        return dict(json.loads(report.read_text(encoding="utf-8")))
    for half_done in ("parts", "cleaned"):
        shutil.rmtree(run / half_done, ignore_errors=True)
    (english_german, english_french) = CORPORA[1:3]
    words = [str(data / english_german.files[0]), "--out", str(run / "parts")]
    heedful(["data", "split", *words, "--valid", "500", "--test", str(TEST)])
    pairs = list(type(english_german)("", ("train.tsv.gz",), ("en", "de"), 1).pairs(run / "parts"))
    draw = random.Random(1)
    draw.shuffle(pairs)
    real, victims = pairs[:REAL], pairs[REAL : REAL + DAMAGED]
    foreign = [target for _, target in english_french.pairs(data)]
    damaged = [
        pair
        for number, kind in enumerate(NOISE)
        for pair in kind(victims[number :: len(NOISE)], foreign, draw)
    ]
    write(run / "clean.tsv", real)
    noisy = [*real, *damaged]
    draw.shuffle(noisy)
    write(run / "noisy.tsv", noisy)
    words = [str(run / "noisy.tsv"), "--out", str(run / "cleaned"), "--languages", "en", "de"]
    said = heedful(["data", "clean", *words, "--json"])
    left = set((run / "cleaned" / "noisy.tsv").read_text(encoding="utf-8").split("\n")[:-1])
    facts = {
        "pairs": {"clean": len(real), "noisy": len(noisy), "cleaned": len(left)},
        "real_pairs_removed": sum(f"{a}\t{b}" not in left for a, b in real),
        "damaged_pairs_left": sum(f"{a}\t{b}" in left for a, b in damaged),
        "damaged_pairs": len(damaged),
        "removed": json.loads(said)["removed"],
    }
    report.write_text(json.dumps(facts), encoding="utf-8")
    return facts


def write(path: Path, pairs: list[Pair]) -> None:
    """Write pairs as source, tab, target."""
    text = "".join(f"{source}\t{target}\n" for source, target in pairs)
    path.write_text(text, encoding="utf-8", newline="\n")


def score(run: Path, arm: str, seed: int, arguments: argparse.Namespace, out: Path) -> float:
    """BLEU of a translator trained on one of the sets."""
    files = {"clean": "clean.tsv", "noisy": "noisy.tsv", "cleaned": "cleaned/noisy.tsv"}
    name = f"{arm}-{seed}"
    scores = run / f"{name}.json"
    if not scores.exists():
        log = out / f"{name}.log"
        parts = {
            "train": [str(run / files[arm])],
            "valid": [str(run / "parts" / "valid.tsv.gz")],
        }
        settings = {"seed": seed, "preset": "tiny"}
        train(run / name, HERE / "filter.toml", parts, settings, arguments.extra, log)
        hide_paths(log, {run / name: "RUN", run: "RUNS", arguments.data: "DIR"})
        test = type(CORPORA[0])("", ("test.tsv.gz",), ("en", "de"), 1).pairs(run / "parts")
        sources, references = zip(*test, strict=True)
        (run / "test.en").write_text("\n".join(sources) + "\n", encoding="utf-8")
        output = run / f"{name}.de"
        words = ["-i", str(run / "test.en"), "-o", str(output), "--device", "cpu"]
        heedful(["translate", str(run / name), *words, *SEARCH])
        outputs = output.read_text(encoding="utf-8").split("\n")[:-1]
        scores.write_text(json.dumps(translation_scores(outputs, references)), encoding="utf-8")
    return float(json.loads(scores.read_text(encoding="utf-8"))["bleu"])


def main() -> None:
    """Prepare, train, translate, and write down the scores."""
    arguments = parse(new_parser(__doc__))
    run = (arguments.run or Path("runs") / "filter").absolute()
    run.mkdir(parents=True, exist_ok=True)
    out = arguments.results / "filter"
    out.mkdir(parents=True, exist_ok=True)
    facts = prepare(arguments.data, run)
    scores = {
        arm: [score(run, arm, seed, arguments, out) for seed in SEEDS]
        for arm in ("noisy", "cleaned", "clean")
    }
    result = {
        "benchmark": "filter",
        "command": "python benchmarks/filter.py --data DIR",
        "date": datetime.date.today().isoformat(),
        "machine": describe_machine(),
        "search": " ".join(SEARCH),
        **facts,
        "bleu": scores,
    }
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    rows = [["trained on", "pairs", "damaged", "BLEU, mean", *(f"seed {s}" for s in SEEDS)]]
    bad = {"noisy": facts["damaged_pairs"], "cleaned": facts["damaged_pairs_left"], "clean": 0}
    for arm, each in scores.items():
        sizes = [f"{facts['pairs'][arm]:,}", f"{bad[arm]:,}"]
        mean = mean_cell([sum(each) / len(each)], 1)
        rows.append([arm, *sizes, mean, *(f"{value:.1f}" for value in each)])
    (out / "table.md").write_text(markdown_table(rows), encoding="utf-8")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
