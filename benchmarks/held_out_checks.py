"""The checks of numbers and of parts that stay, on pairs that no rule of theirs was written on.

    python benchmarks/held_out_checks.py --data DIR [--part test] [--alarms FILE]

DIR holds tatoeba and python_docs (or set HEEDFUL_DATA). All pairs of Tatoeba (English to German and
French) and of Python's documentation (English to French) are split by a hash of the English text:
rules were written on --part valid, the figures in RESULTS/held-out-checks are those of --part test.
Each translation that has a number in figures, a placeholder or an address is damaged once in each
way (damages.py), in both directions. A check finds a damage if it fails on the damaged translation,
and gives a false alarm if it fails on the same translation undamaged.

An alarm on an undamaged pair is not always false: translators change numbers, too. Whoever has read
the pairs writes a verdict on each into RESULTS/held-out-checks/verdicts.tsv (corpus, language of
the source, line of its file, check, verdict): `differs` if the texts do, `form` if they say the
same. With verdicts, a second precision counts alarms on texts that differ as right, and a second
recall leaves out the damage done to them: to drop a number that the translator had added is none.
--alarms writes the pairs that are to be read, with what differs and their texts, into a file.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from damages import (
    Damage,
    Example,
    number_changed,
    number_dropped,
    placeholder_changed,
    placeholder_doubled,
    placeholder_lost,
    url_changed,
)
from report import say, write_result
from tables import markdown_table

from heedful.apps.quality.text_checks import check_kept

HERE = Path(__file__).resolve().parent
CORPORA = {
    "Tatoeba en-de": ("tatoeba/en-de.tsv.gz", ("en", "de")),
    "Tatoeba en-fr": ("tatoeba/en-fr.tsv.gz", ("en", "fr")),
    "Python docs en-fr": ("python_docs/en-fr.tsv.gz", ("en", "fr")),
}
KINDS: dict[str, tuple[Damage, str]] = {
    "number changed": (number_changed, "numbers"),
    "number dropped": (number_dropped, "numbers"),
    "placeholder lost": (placeholder_lost, "placeholders"),
    "placeholder doubled": (placeholder_doubled, "placeholders"),
    "placeholder changed": (placeholder_changed, "placeholders"),
    "URL changed": (url_changed, "urls"),
}
CHECKED = ("numbers", "placeholders", "urls")

Key = tuple[str, str, int, str]
"""A corpus, the language of the source, the line of a pair in its file, and a check."""


@dataclass(frozen=True)
class Pair:
    """A line of a corpus: its number, the English text and the other one."""

    line: int
    source: str
    target: str


def held_out(path: Path, part: str) -> Iterator[Pair]:
    """Yield the pairs of one half, which the hash of the English text decides."""
    seen: set[tuple[str, str]] = set()
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line, row in enumerate(file, 1):
            source, target = row.rstrip("\n").split("\t")[:2]
            digest = hashlib.blake2b(source.encode(), digest_size=8).digest()
            if (digest[0] < 128) == (part == "valid") and (source, target) not in seen:
                seen.add((source, target))
                yield Pair(line, source, target)


def failed(source: str, target: str, languages: tuple[str, str]) -> set[str]:
    """Return the names of the checks that fail."""
    return {each.name for each in check_kept(source, target, languages) if each.failed}


def alarms(name: str, pairs: list[Pair], languages: tuple[str, str]) -> dict[Key, str]:
    """Return the alarms on undamaged pairs, each with a line for whoever reads it."""
    found = {}
    for pair in pairs:
        for result in check_kept(pair.source, pair.target, languages):
            if result.failed:
                key = (name, languages[0], pair.line, result.name)
                words = " ; ".join(f"{e.side} {e.text} {e.note}" for e in result.evidence)
                found[key] = "\t".join((*map(str, key), words, pair.source, pair.target))
    return found


def measure(
    name: str, pairs: list[Pair], languages: tuple[str, str], verdicts: dict[Key, str]
) -> list[dict[str, Any]]:
    """Damage the translations of a corpus in each way, and count what is found."""
    rows = []
    for kind, (damage, check) in KINDS.items():
        names = ("damaged", "found", "alarms", "differ", "unread", "damaged_same", "found_same")
        counts = dict.fromkeys(names, 0)
        for pair in pairs:
            draw = random.Random(f"{pair.line} {kind}")
            made = damage(Example(pair.source, pair.target, ""), draw)
            if made is None or made == pair.target:
                continue
            is_found = check in failed(pair.source, made, languages)
            counts["damaged"] += 1
            counts["found"] += is_found
            verdict = verdicts.get((name, languages[0], pair.line, check))
            if check in failed(pair.source, pair.target, languages):
                counts["alarms"] += 1
                counts["differ"] += verdict == "differs"
                counts["unread"] += verdict is None
            counts["damaged_same"] += verdict != "differs"
            counts["found_same"] += is_found and verdict != "differs"
        if counts["damaged"]:
            rows.append({"corpus": name, "from": languages[0], "kind": kind, **counts})
            say(f"{name} from {languages[0]} {kind}: {counts}")
    return rows


def figures(row: dict[str, Any]) -> list[str]:
    """Return precision and recall of a row, each also with verdicts."""
    found, alarms = row["found"], row["alarms"]
    precision, recall = found / (found + alarms), found / row["damaged"]
    if row["unread"]:
        return [f"{precision:.3f}", "", f"{recall:.3f}", ""]
    read = (found + row["differ"]) / (found + alarms)
    same = row["found_same"] / row["damaged_same"]
    return [f"{precision:.3f}", f"{read:.3f}", f"{recall:.3f}", f"{same:.3f}"]


def table(rows: list[dict[str, Any]]) -> str:
    """Return all rows as Markdown."""
    head = ["damage", "corpus", "from", "damaged", "found", "alarms", "of them differ"]
    lines = [[*head, "precision", "read", "recall", "read"]]
    for row in rows:
        counts = [f"{row[name]:,}" for name in ("damaged", "found", "alarms", "differ")]
        lines.append([row["kind"], row["corpus"], row["from"], *counts, *figures(row)])
    return markdown_table(lines)


def read_verdicts(path: Path) -> dict[Key, str]:
    """Return the verdicts of whoever read the pairs."""
    if not path.exists():
        return {}
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return {(name, start, int(line), check): verdict for name, start, line, check, verdict in rows}


def main() -> None:
    """Measure, and write down what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("HEEDFUL_DATA"))
    parser.add_argument("--part", choices=("valid", "test"), default="test")
    parser.add_argument("--alarms", type=Path, help="file for the pairs that are to be read")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    if arguments.data is None:
        say("skipped: give the corpora by --data or HEEDFUL_DATA")
        return
    folder = arguments.results / "held-out-checks"
    verdicts = read_verdicts(folder / "verdicts.tsv") if arguments.part == "test" else {}
    rows: list[dict[str, Any]] = []
    totals: list[dict[str, Any]] = []
    to_read: list[str] = []
    for name, (path, languages) in CORPORA.items():
        pairs = list(held_out(Path(arguments.data) / path, arguments.part))
        turned = [Pair(pair.line, pair.target, pair.source) for pair in pairs]
        for direction, each in ((languages, pairs), (languages[::-1], turned)):
            found = alarms(name, each, direction)
            to_read += found.values()
            for check in CHECKED:
                keys = [key for key in found if key[3] == check]
                totals.append(
                    {
                        "corpus": name,
                        "from": direction[0],
                        "check": check,
                        "pairs": len(pairs),
                        "alarms": len(keys),
                        "differ": sum(verdicts.get(key) == "differs" for key in keys),
                    }
                )
            rows += measure(name, each, direction, verdicts)
    if arguments.alarms is not None:
        arguments.alarms.write_text("\n".join(to_read) + "\n", encoding="utf-8")
    if arguments.part == "test":
        command = "python benchmarks/held_out_checks.py --data DIR"
        write_result(
            arguments.results, "held-out-checks", command, {"damages": rows, "all_pairs": totals}
        )
        (folder / "damages.md").write_text(table(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
