"""The check of corpora: what it finds as they are, what of injected damage, time and memory.

    python benchmarks/data_check.py --data DIR
    python benchmarks/data_check.py --data DIR --parts damage model --pairs 2000

DIR holds multi30k/raw/train.{en,de}.gz, tatoeba/{en-de,en-fr}.tsv.gz and
python_docs/en-fr.tsv.gz (or set HEEDFUL_DATA). Limits were chosen on lines 1, 4, 7, … of Multi30k,
1, 11, 21, … of Tatoeba and 1, 3, 5, … of the documentation. Here it is the line after each of
these: rules read them as they are, and after one kind of damage was done to a tenth.

- found: pairs of the whole corpora that each rule finds.
- damage: recall of each kind, the share of damaged pairs that go; and precision, the share of
  damaged ones among those that go. Pairs that go and were not damaged count as mistakes, also those
  that really are bad.
- model: the same with a model's score (`--model`, the English-German one that comes with Heedful),
  for fewer pairs.
- size: seconds and memory of `heedful data check` for 100,000 and a million synthetic pairs.

Writes RESULTS/data-check/: result.json and a table for each part. Parts that were measured before
stay as they are.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from damage import KINDS, Pair, changed_number, repeated, same_target
from driver import new_parser, parse
from machine import describe_machine
from tables import markdown_table

from heedful.apps.cleaning.check_report import prepare
from heedful.apps.cleaning.cleaning_settings import CleaningSettings
from heedful.apps.cleaning.examination import examine
from heedful.apps.cleaning.pair_judge import RULES
from heedful.apps.cleaning.raw_pairs import RawCorpus
from heedful.cli.data import Beside
from heedful.data.corpus_spec import CorpusSpec

PARTS = ("found", "damage", "model", "size")
SIZES = (100_000, 1_000_000)
DAMAGED = 0.1
SEED = 1


@dataclass(frozen=True)
class Corpus:
    """A corpus and the lines of it that are damaged.

    Args:
        title: for tables.
        files: below the data.
        languages: of source and target.
        stride: every so many lines were looked at before; the lines after those are damaged.
    """

    title: str
    files: tuple[str, ...]
    languages: tuple[str, str]
    stride: int

    def spec(self, data: Path) -> CorpusSpec:
        """The corpus as the check reads it."""
        paths = [str(data / file) for file in self.files]
        return (
            CorpusSpec(file=paths[0])
            if len(paths) == 1
            else CorpusSpec(source=paths[0], target=paths[1])
        )

    def pairs(self, data: Path) -> Iterator[Pair]:
        """The pairs."""
        for pair in RawCorpus(self.spec(data)):
            yield pair.source, pair.target.replace("\t", " ")


_CAPTIONS = ("multi30k/raw/train.en.gz", "multi30k/raw/train.de.gz")
CORPORA = (
    Corpus("Multi30k en-de", _CAPTIONS, ("en", "de"), 3),
    Corpus("Tatoeba en-de", ("tatoeba/en-de.tsv.gz",), ("en", "de"), 10),
    Corpus("Tatoeba en-fr", ("tatoeba/en-fr.tsv.gz",), ("en", "fr"), 10),
    Corpus("Python docs en-fr", ("python_docs/en-fr.tsv.gz",), ("en", "fr"), 2),
)  # fmt: skip


def removed_flags(pairs: list[Pair], languages: tuple[str, str], scorer: Any = None) -> list[bool]:
    """Whether each pair would go."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.tsv"
        text = "".join(f"{source}\t{target}\n" for source, target in pairs)
        path.write_text(text, encoding="utf-8", newline="\n")
        limits = CleaningSettings(languages=languages)
        found = examine(*prepare(CorpusSpec(file=str(path)), limits, scorer=scorer)).found
    return [bool(bits) for bits in found]


def measure_found(data: Path) -> dict[str, Any]:
    """Pairs that each rule finds in each corpus, and all that would go."""
    result = {}
    for corpus in CORPORA:
        say(f"found: {corpus.title}")
        limits = CleaningSettings(languages=corpus.languages)
        raw, tools = prepare(corpus.spec(data), limits)
        examination = examine(raw, tools)
        counts = {rule: len(examination.rows(rule)) for rule in RULES}
        result[corpus.title] = {
            "pairs": raw.pairs,
            "removed": raw.pairs - examination.kept,
            "rules": {rule: count for rule, count in counts.items() if count},
        }
    return result


def measure_damage(data: Path, most: int, scorer: Any = None) -> dict[str, Any]:
    """Recall and precision of each kind on each corpus."""
    result: dict[str, Any] = {}
    corpora = CORPORA if scorer is None else CORPORA[:2]
    foreign = {c.languages[1]: [t for _, t in c.pairs(data)][::50] for c in CORPORA[1:3]}
    for corpus in corpora:
        draw = random.Random(SEED)
        usable = [p for p in dict.fromkeys(list(corpus.pairs(data))[1 :: corpus.stride]) if all(p)]
        usable = draw.sample(usable, min(most, len(usable)))
        other = foreign["fr" if corpus.languages[1] == "de" else "de"]
        wrong = sum(removed_flags(usable, corpus.languages, scorer))
        result[corpus.title] = {"pairs": len(usable), "of_real_pairs_removed": wrong}
        for kind in KINDS:
            chosen = set(draw.sample(range(len(usable)), round(DAMAGED * len(usable))))
            victims = [usable[n] for n in sorted(chosen)]
            if kind in (changed_number, same_target):  # few pairs have numbers: all that do
                victims = usable
            damaged = kind(victims, other, draw)
            rest = (
                usable
                if kind in (repeated, changed_number, same_target)
                else [p for n, p in enumerate(usable) if n not in chosen]
            )
            flags = removed_flags([*rest, *damaged], corpus.languages, scorer)
            right, mistakes = sum(flags[len(rest) :]), sum(flags[: len(rest)])
            result[corpus.title][kind.__name__] = {
                "damaged": len(damaged),
                "recall": round(right / max(1, len(damaged)), 4),
                "precision": round(right / max(1, right + mistakes), 4),
            }
            say(f"{corpus.title}: {kind.__name__} {result[corpus.title][kind.__name__]}")
    return result


def measure_size(data: Path) -> dict[str, Any]:
    """Time and memory of the command for synthetic corpora: real pairs with a word that is new."""
    lines = [pair for corpus in CORPORA[:2] for pair in corpus.pairs(data)]
    result = {}
    for size in SIZES:
        draw = random.Random(SEED)
        with tempfile.TemporaryDirectory() as folder:
            path, report = Path(folder) / "pairs.tsv", Path(folder) / "report.json"
            with path.open("w", encoding="utf-8", newline="\n") as file:
                for _ in range(size):
                    source, target = draw.choice(lines)
                    word = f" x{draw.randrange(10**7)}" if draw.random() < 0.7 else ""
                    file.write(f"{source}{word}\t{target}{word}\n")
            command = [sys.executable, "-m", "heedful", "data", "check", str(path)]
            command += [
                "--out",
                f"{folder}/out",
                "--report",
                str(report),
                "--languages",
                "en",
                "de",
            ]
            before, started = os.times(), time.perf_counter()
            peak = peak_of(command)
            seconds, after = time.perf_counter() - started, os.times()
            facts = json.loads(report.read_text(encoding="utf-8"))
            result[str(size)] = {
                "megabytes_of_text": round(path.stat().st_size / 1e6, 1),
                "seconds": round(seconds, 1),
                "processor_seconds": round(after.children_user - before.children_user, 1),
                "peak_memory_mb": round(peak / 1e6, 1),
                "removed": facts["removed"],
            }
        say(f"size: {size:,}: {result[str(size)]}")
    small, large = (result[str(size)]["peak_memory_mb"] for size in SIZES)
    result["bytes_a_pair"] = round((large - small) * 1e6 / (SIZES[1] - SIZES[0]))
    return result


def peak_of(command: list[str]) -> int:
    """Run a command; the most bytes it held, looked at twice a second.

    What the process reports of itself would begin with the memory of the one that started it.
    """
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    watched, peak = psutil.Process(process.pid), 0
    while process.poll() is None:
        with contextlib.suppress(psutil.Error):
            peak = max(peak, watched.memory_info().rss)
        time.sleep(0.5)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return peak


def tables(result: dict[str, Any], folder: Path) -> None:
    """Write a table for each part."""
    if found := result.get("found"):
        rules = [rule for rule in RULES if any(rule in each["rules"] for each in found.values())]
        rows = [["rule", *found], ["pairs", *(f"{each['pairs']:,}" for each in found.values())]]
        rows += [[f"`{r}`", *(f"{e['rules'].get(r, 0):,}" for e in found.values())] for r in rules]
        rows.append(["would go", *(f"{e['removed'] / e['pairs']:.2%}" for e in found.values())])
        write_table(folder / "found.md", rows)
    for part in ("damage", "model"):
        if measured := result.get(part):
            rows = [["damage", *measured]]
            for kind in (kind.__name__ for kind in KINDS):
                cells = (each[kind] for each in measured.values())
                rows.append([kind.replace("_", " "), *(_both(cell) for cell in cells)])
            cells = (e["of_real_pairs_removed"] / e["pairs"] for e in measured.values())
            rows.append(["real pairs that go", *(f"{cell:.2%}" for cell in cells)])
            write_table(folder / f"{part}.md", rows)
    if size := result.get("size"):
        rows = [["pairs", "text, MB", "seconds", "of the processor", "peak memory, MB"]]
        for pairs in map(str, SIZES):
            each = size[pairs]
            cells = (
                each[k]
                for k in ("megabytes_of_text", "seconds", "processor_seconds", "peak_memory_mb")
            )
            rows.append([f"{int(pairs):,}", *(f"{cell:,.0f}" for cell in cells)])
        write_table(folder / "size.md", rows)


def _both(cell: dict[str, float]) -> str:
    return f"{cell['recall']:.1%} / {cell['precision']:.1%}" if cell["damaged"] else ""


def write_table(path: Path, rows: list[list[str]]) -> None:
    """Write a Markdown table."""
    path.write_text(markdown_table(rows), encoding="utf-8")


def say(text: str) -> None:
    """For people."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure the parts that were asked for, and write down what was found."""
    parser = new_parser(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--pairs", type=int, default=8000, help="of each corpus, for damage")
    parser.add_argument("--model-pairs", type=int, default=1000)
    parser.add_argument("--model", type=Path, default=Path("en-de"))
    arguments = parse(parser)
    folder = arguments.results / "data-check"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "result.json"
    result = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    result |= {
        "benchmark": "data-check",
        "command": "python benchmarks/data_check.py --data DIR",
        "date": datetime.date.today().isoformat(),
        "machine": describe_machine(),
    }
    measures = {
        "found": lambda: measure_found(arguments.data),
        "damage": lambda: measure_damage(arguments.data, arguments.pairs),
        "model": lambda: measure_damage(
            arguments.data,
            arguments.model_pairs,
            Beside(model=arguments.model, device="cpu").scorer(),
        ),
        "size": lambda: measure_size(arguments.data),
    }
    for part in arguments.parts:
        result[part] = measures[part]()
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        tables(result, folder)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
