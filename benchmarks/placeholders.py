"""Placeholders and markup in translations of documentation, with protection and without.

    python benchmarks/placeholders.py --data DIR [--steps 3000] [--preset tiny] [--runs DIR]

DIR holds python_docs/en-fr.tsv.gz (or set HEEDFUL_DATA): the documentation of Python with its
reStructuredText. Two translators are trained on the same pairs for as many updates, one with
`--protect all`; the last --held-out pairs of a shuffle are translated by both. A part of a source
(a role, code, a placeholder, an address, a tag) is intact where the translation has it byte for
byte as often as the source. References translate some parts, so their own share is given, too.
Prints one JSON line, which also goes to RESULTS/placeholders/result.json.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report import say, write_result

from heedful.cli.main import main as heedful
from heedful.evaluate.corpus_metrics import corpus_scores
from heedful.pipelines.translation import TranslationPipeline
from heedful.text.protected_spans import SPAN_KINDS, Protection


def split_corpus(path: Path, held_out: int, folder: Path) -> list[tuple[str, str]]:
    """Write the training and validation parts; return the held-out pairs."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t")[:2] for line in file]
    pairs = list(dict.fromkeys((row[0], row[1]) for row in rows))
    random.Random(1).shuffle(pairs)
    parts = {
        "train": pairs[: -held_out - 300],
        "valid": pairs[-held_out - 300 : -held_out],
        "test": pairs[-held_out:],
    }
    for name in ("train", "valid"):
        text = "".join(f"{source}\t{target}\n" for source, target in parts[name])
        (folder / f"{name}.tsv").write_text(text, encoding="utf-8")
    return parts["test"]


def intact(sources: Sequence[str], outputs: Sequence[str]) -> dict[str, float]:
    """The percentage of parts of the sources that the outputs have, by kind and of all."""
    found: Counter[str] = Counter()
    needed: Counter[str] = Counter()
    for kinds in (*((kind,) for kind in SPAN_KINDS), SPAN_KINDS):
        protection, name = Protection(kinds), kinds[0] if len(kinds) == 1 else "all"
        for source, output in zip(sources, outputs, strict=True):
            own = Counter(source[start:end] for start, end in protection.find(source))
            found[name] += sum(min(count, output.count(part)) for part, count in own.items())
            needed[name] += own.total()
    return {name: round(100 * found[name] / needed[name], 2) for name in needed if needed[name]}


def main() -> None:
    """Train twice, translate the held-out pairs, write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default=os.environ.get("HEEDFUL_DATA"))
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--held-out", type=int, default=1000)
    parser.add_argument("--runs", type=Path, default=Path("runs") / "placeholders")
    parser.add_argument("--results", type=Path, default=Path(__file__).resolve().parent / "results")
    arguments = parser.parse_args()
    if arguments.data is None:
        say("skipped: give the corpus by --data or HEEDFUL_DATA")
        return
    arguments.runs.mkdir(parents=True, exist_ok=True)
    path = Path(arguments.data) / "python_docs" / "en-fr.tsv.gz"
    sources, references = zip(*split_corpus(path, arguments.held_out, arguments.runs), strict=True)
    results: dict[str, Any] = {"references": {"intact_percent": intact(sources, references)}}
    for name, flags in (("without", []), ("with", ["--protect", "all"])):
        run = arguments.runs / name
        corpora = [f"--{part}={arguments.runs / part}.tsv" for part in ("train", "valid")]
        steps = ["--max-steps", str(arguments.steps), "--validation.every-steps", "1000000"]
        schedule = ["--schedule.warmup-steps", str(max(1, min(1000, arguments.steps // 4)))]
        command = ["train", str(run), "--preset", arguments.preset, *corpora, *steps, *schedule]
        if not (run / "model").exists() and heedful([*command, *flags]) != 0:
            raise SystemExit(1)
        found = TranslationPipeline.load(run, device="cpu").translate(sources, max_length=400)
        results[name] = {
            "intact_percent": intact(sources, found),
            "bleu": round(corpus_scores(found, [references], ["bleu"])["bleu"].score, 2),
            "required": sum(each.required for each in found),
            "missing": sum(len(each.missing) for each in found),
        }
        say(f"{name}: {results[name]}")
    write_result(
        arguments.results,
        "placeholders",
        f"python benchmarks/placeholders.py --data DIR --steps {arguments.steps} "
        f"--preset {arguments.preset} --held-out {arguments.held_out}",
        {"sentences": len(sources), **results},
    )


if __name__ == "__main__":
    main()
