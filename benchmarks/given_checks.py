"""What the checks of given translations find with a model, and how often they alarm on clean ones.

    python benchmarks/given_checks.py --data DIR [--news SOURCE TARGET] [--model en-de]

DIR holds tatoeba and multi30k/raw (or set HEEDFUL_DATA); --news is a .gz file of English news and
one of their German translations. Translations are damaged in the ways of damages.OF_MEANING: a
check finds a damage if it fails on the damaged translation. Clean ones are the same, undamaged;
*alarmed* are those that any check puts in doubt. A rate of few pairs says little, so more clean
pairs are counted (--clean) than damaged ones (--most), with intervals. Names and negations are
drawn from all pairs that have them.
Thresholds were chosen on --part valid and on other news, the figures in RESULTS/given-checks are
those of --part test.
"""

from __future__ import annotations

import argparse
import math
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from checks import SEED, Corpus, _corpus, corpora
from damages import OF_MEANING
from inside import read_lines
from report import say, write_result
from tables import markdown_table

from heedful.apps.quality.checker import Checker
from heedful.pipelines.translation import TranslationPipeline

HERE = Path(__file__).resolve().parent


def sets(arguments: argparse.Namespace) -> Iterator[Corpus]:
    """Yield the sets: news, where there is a file, everyday sentences and captions."""
    if arguments.news:
        pairs = list(zip(*map(read_lines, arguments.news), strict=True))
        yield _corpus("news", ("en", "de"), pairs, len(pairs))
    for corpus in corpora(Path(arguments.data), arguments.part, 2000):
        if corpus.uses_model:
            yield corpus


def measure(corpus: Corpus, checker: Checker, most: int, clean: int) -> list[dict[str, Any]]:
    """Damage the translations of a set in each way, and count what is found."""
    examples = corpus.examples
    kinds: dict[str, list[tuple[str, str]]] = {
        "none": [(each.source, each.target) for each in examples[:clean]]
    }
    for kind, (damage, _) in OF_MEANING.items():
        draw = random.Random(f"{SEED} {kind}")
        made = ((each, damage(each, draw)) for each in examples)
        damaged = [(e.source, text) for e, text in made if text and text != e.target]
        kinds[kind] = damaged[:most]
    rows = []
    for kind, pairs in kinds.items():
        reports = checker.report_pairs(*map(list, zip(*pairs, strict=True)))
        names = OF_MEANING[kind][1] if kind in OF_MEANING else ()
        failed = Counter(name for report in reports for name in report.failed)
        rows.append(
            {
                "corpus": corpus.name,
                "kind": kind,
                "pairs": len(pairs),
                "found": sum(any(name in each.failed for name in names) for each in reports),
                "alarmed": sum(each.in_doubt for each in reports),
                "each": dict(failed),
            }
        )
        say(f"{rows[-1]}")
    return rows


def tables(rows: list[dict[str, Any]]) -> tuple[str, str]:
    """Return the shares that are found of each damage, and of clean pairs that each check fails."""
    found = [["damage", "corpus", "damaged", "found", "by any check"]]
    alarms = [["check", *(f"{r['corpus']}, {r['pairs']}" for r in rows if r["kind"] == "none")]]
    clean = [row for row in rows if row["kind"] == "none"]
    for kind in OF_MEANING:
        for row in (row for row in rows if row["kind"] == kind):
            shares = [f"{row[name] / row['pairs']:.3f}" for name in ("found", "alarmed")]
            found.append([kind, row["corpus"], f"{row['pairs']:,}", *shares])
    for name in sorted({name for row in clean for name in row["each"]}):
        counts = [(row["each"].get(name, 0), row["pairs"]) for row in clean]
        alarms.append([f"`{name}`", *(_rate(*count) for count in counts)])
    alarms.append(["any of them", *(_rate(row["alarmed"], row["pairs"]) for row in clean)])
    return markdown_table(found), markdown_table(alarms)


def _rate(count: int, total: int) -> str:
    """Return a share with the interval that holds the true one at 95 %, by Wilson's score."""
    share, z = count / total, 1.96
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(share * (1 - share) / total + (z / (2 * total)) ** 2) / (1 + z * z / total)
    return f"{share:.3f} ({max(middle - half, 0):.3f}-{middle + half:.3f})"


def main() -> None:
    """Measure, and write down what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=Path("en-de"))
    parser.add_argument("--data", type=Path, default=os.environ.get("HEEDFUL_DATA"))
    parser.add_argument("--news", type=Path, nargs=2)
    parser.add_argument("--part", choices=("valid", "test"), default="test")
    parser.add_argument("--most", type=int, default=300, help="damaged pairs of a kind and set")
    parser.add_argument("--clean", type=int, default=1000, help="undamaged pairs of a set")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    if arguments.data is None:
        say("skipped: give the corpora by --data or HEEDFUL_DATA")
        return
    checker = Checker(TranslationPipeline.load(arguments.model, device="cpu"), ("en", "de"))
    rows = []
    for each in sets(arguments):
        rows += measure(each, checker, arguments.most, arguments.clean)
    name = "given-checks" if arguments.part == "test" else "given-checks-valid"
    command = f"python benchmarks/given_checks.py --data DIR --part {arguments.part} --news FILES"
    write_result(
        arguments.results,
        name,
        f"{command} --most {arguments.most} --clean {arguments.clean}",
        {"rows": rows},
    )
    for file, text in zip(("found.md", "alarms.md"), tables(rows), strict=True):
        (arguments.results / name / file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
