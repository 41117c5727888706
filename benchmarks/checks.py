"""What the checks of translations find: damage of known kinds, and bad translations of a model.

    python benchmarks/checks.py --data DIR [--model en-de] [--part test]

DIR holds tatoeba, multi30k/raw and python_docs (or set HEEDFUL_DATA). People's translations are
damaged in known ways (damages.py): a check finds a damage if it fails on the damaged translation,
and gives a false alarm if it fails on the same translation undamaged. Texts alone are checked here,
given translations with a model by given_checks.py. Thresholds were chosen on --part valid, the
figures in RESULTS/checks are those of --part test, which shares no sentence with it:

- Tatoeba: the held-out parts of the split of pretrained/tatoeba.py; its French translations of the
  same sentences are the wrong language. Pairs with figures are rare, so those of the training part
  and of English to French count, too, where no model looks at them: even ones for --part valid.
- Multi30k: the validation set, and test_2016_flickr.
- python_docs, English to French, texts alone: even pairs for --part valid, odd ones for test.

Then the model translates: how good (sentence chrF) are translations that a check doubts, and those
that none doubts? Last, sentences a second with and without --check, in turns.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from damages import DAMAGES, Example
from inside import read_lines
from report import say, write_result
from speed.turns import alternate, ratio, summary
from tables import markdown_table

from heedful.apps.quality.checker import Checker
from heedful.apps.quality.reports import TranslationReport
from heedful.apps.quality.text_checks import CHECKS
from heedful.evaluate.corpus_metrics import build_metric
from heedful.pipelines.translation import TranslationPipeline

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "pretrained"))

from tatoeba import one_reference_each, split_pairs  # noqa: E402 (a script of the folder above)

BAD = 30.0
"""Sentence chrF below which a translation of a model counts as bad."""

SEED = 27


@dataclass(frozen=True)
class Corpus:
    """Translations to damage.

    Args:
        name: of the set.
        languages: codes.
        examples: texts and their translations.
        uses_model: the model of --model translates between these languages.
    """

    name: str
    languages: tuple[str, str]
    examples: list[Example]
    uses_model: bool


def corpora(data: Path, part: str, most: int) -> Iterator[Corpus]:
    """Yield the sets of a part, each of at most so many examples."""
    parts = split_pairs(data / "tatoeba" / "en-de.tsv.gz")
    french = dict(_pairs(data / "tatoeba" / "en-fr.tsv.gz"))
    pairs = one_reference_each(parts[part])
    yield _corpus("Tatoeba", ("en", "de"), pairs, most, french=french, uses_model=True)
    figures = [*parts["train"], *parts[part]]
    yield _corpus("Tatoeba, figures", ("en", "de"), _with_figures(figures, part), most)
    figures = _pairs(data / "tatoeba" / "en-fr.tsv.gz")
    yield _corpus("Tatoeba, figures", ("en", "fr"), _with_figures(figures, part), most)
    folder, name = data / "multi30k" / "raw", {"valid": "val", "test": "test_2016_flickr"}[part]
    english, german, third = (read_lines(folder / f"{name}.{x}.gz") for x in ("en", "de", "fr"))
    yield _corpus(
        "Multi30k",
        ("en", "de"),
        list(zip(english, german, strict=True)),
        most,
        french=dict(zip(english, third, strict=True)),
        uses_model=True,
    )
    docs = _half(_pairs(data / "python_docs" / "en-fr.tsv.gz"), part)
    yield _corpus("Python docs", ("en", "fr"), docs, 4 * most)


def _corpus(
    name: str,
    languages: tuple[str, str],
    pairs: Sequence[tuple[str, str]],
    most: int,
    *,
    french: dict[str, str] | None = None,
    uses_model: bool = False,
) -> Corpus:
    chosen = list(pairs)
    random.Random(SEED).shuffle(chosen)
    chosen = chosen[:most]
    examples = [
        Example(source, target, other, (french or {}).get(source), before)
        for (source, target), (before, other) in zip(chosen, chosen[1:] + chosen[:1], strict=True)
    ]
    return Corpus(name, languages, examples, uses_model)


def _pairs(path: Path) -> list[tuple[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        columns = [line.rstrip("\n").split("\t") for line in stream]
    return list(dict.fromkeys((each[0], each[1]) for each in columns))


def _half(pairs: Sequence[tuple[str, str]], part: str) -> list[tuple[str, str]]:
    return list(pairs[0 if part == "valid" else 1 :: 2])


def _with_figures(pairs: Sequence[tuple[str, str]], part: str) -> list[tuple[str, str]]:
    figures = [pair for pair in pairs if any(map(str.isdigit, pair[0] + pair[1]))]
    return _half(sorted(set(figures)), part)


class Bench:
    """The model, and the reports that are asked for.

    Args:
        arguments: of the command line.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.pipeline = TranslationPipeline.load(arguments.model, device="cpu")

    def reports(
        self, corpus: Corpus, sources: Sequence[str], targets: Sequence[str]
    ) -> list[TranslationReport]:
        """Reports on given translations, by their texts alone."""
        return Checker(languages=corpus.languages).report_pairs(sources, targets)

    def damages(self, corpus: Corpus) -> list[dict[str, Any]]:
        """What the checks find of every kind of damage to a corpus."""
        plain = [example.target for example in corpus.examples]
        sources = [example.source for example in corpus.examples]
        before = self.reports(corpus, sources, plain)
        rows = []
        for kind, (damage, names) in DAMAGES.items():
            draw = random.Random(f"{SEED} {kind}")
            made = [damage(example, draw) for example in corpus.examples]
            places = [i for i, text in enumerate(made) if text is not None and text != plain[i]]
            if "figures" in corpus.name and "number" not in kind:
                continue
            if not places:
                continue
            after = self.reports(
                corpus, [sources[i] for i in places], [made[i] or "" for i in places]
            )
            rows.append(_row(corpus, kind, names, [before[i] for i in places], after))
            say(f"{corpus.name:<18}{kind:<26}{rows[-1]['counts']}")
        alarms = {name: sum(name in report.failed for report in before) for name in CHECKS}
        rows.append({"corpus": corpus.name, "kind": "none", "of": len(before), "alarms": alarms})
        say(f"{corpus.name}: false alarms of {len(before)}: {alarms}")
        return rows

    def translations(self, corpus: Corpus) -> dict[str, Any]:
        """How good translations of the model are that checks doubt, and those that none doubts."""
        examples = corpus.examples[: self.arguments.translated]
        sources = [example.source for example in examples]
        found = self.pipeline.translate(sources, alignment=True)
        checker = Checker(self.pipeline, corpus.languages, detached=True)
        reports = checker.reports(sources, found)
        metric = build_metric("chrf")
        scores = [
            metric.sentence_score(str(text), [example.target]).score
            for text, example in zip(found, examples, strict=True)
        ]
        names = {name: [name in report.failed for report in reports] for name in CHECKS}
        names["any of them"] = [report.in_doubt for report in reports]
        bad = sum(score < BAD for score in scores)
        rows = {}
        for name, flags in names.items():
            doubted = [score for score, flag in zip(scores, flags, strict=True) if flag]
            trusted = [score for score, flag in zip(scores, flags, strict=True) if not flag]
            rows[name] = {
                "doubted": len(doubted),
                "doubted_bad": sum(score < BAD for score in doubted),
                "doubted_chrf": round(statistics.fmean(doubted), 1) if doubted else None,
                "trusted_chrf": round(statistics.fmean(trusted), 1) if trusted else None,
            }
            say(f"{corpus.name:<12}{name:<16}{rows[name]} of {bad} bad")
        return {"corpus": corpus.name, "of": len(scores), "bad": bad, "checks": rows}

    def speed(self, corpus: Corpus) -> dict[str, Any]:
        """Sentences a second of plain translating, of --check and of --check-source, in turns."""
        sources = [example.source for example in corpus.examples][: self.arguments.sentences]

        def turn(name: str) -> float:
            start = time.process_time()
            found = self.pipeline.translate(sources, alignment=name != "plain")
            if name != "plain":
                detached = name == "check source"
                checker = Checker(self.pipeline, corpus.languages, detached=detached)
                checker.reports(sources, found)
            return len(sources) / (time.process_time() - start)

        contestants = ("plain", "check", "check source")
        for name in contestants:  # the first time, much is set up
            turn(name)
        turns = {name: lambda _, name=name: turn(name) for name in contestants}
        figures = alternate(turns, self.arguments.rounds, say)
        return {
            "corpus": corpus.name,
            "sentences": len(sources),
            **{name: summary(each) for name, each in figures.items()},
            **{f"{n} ratio": ratio(figures[n], figures["plain"]) for n in contestants[1:]},
        }


def _row(
    corpus: Corpus,
    kind: str,
    names: Sequence[str],
    before: Sequence[TranslationReport],
    after: Sequence[TranslationReport],
) -> dict[str, Any]:
    def fails(report: TranslationReport) -> bool:  # also a check that is only reported
        return any(each.failed and each.name in names for each in report.checks)

    counts = {
        "damaged": len(after),
        "found": sum(map(fails, after)),
        "false_alarms": sum(map(fails, before)),
        "found_by_any": sum(report.in_doubt for report in after),
    }
    return {
        "corpus": corpus.name,
        "languages": "-".join(corpus.languages),
        "kind": kind,
        "checks": list(names),
        "counts": counts,
        "each": {
            name: sum(name in report.failed for report in after)
            for name in CHECKS
            if any(name in report.failed for report in after)
        },
    }


def damage_table(rows: Sequence[dict[str, Any]]) -> str:
    """Precision and recall of each kind in each corpus, as Markdown."""
    table = [
        ["damage", "corpus", "checks", "damaged", "found", "false alarms", "precision", "recall"]
    ]
    kinds = [row for kind in DAMAGES for row in rows if row["kind"] == kind]
    for row in kinds:
        counts = row["counts"]
        alarms = counts["found"] + counts["false_alarms"]
        table.append(
            [
                row["kind"],
                f"{row['corpus']} {row['languages']}",
                ", ".join(row["checks"]),
                f"{counts['damaged']:,}",
                f"{counts['found']:,}",
                f"{counts['false_alarms']:,}",
                f"{counts['found'] / alarms:.3f}" if alarms else "",
                f"{counts['found'] / counts['damaged']:.3f}",
            ]
        )
    return markdown_table(table)


def real_table(found: Sequence[dict[str, Any]]) -> str:
    """What becomes of a model's own translations, as Markdown."""
    table = [["check", "corpus", "doubted", "of them bad", "chrF if doubted", "chrF if not"]]
    for name in [*CHECKS, "any of them"]:
        for each in found:
            row = each["checks"][name]
            if row["doubted"]:
                table.append(
                    [
                        name,
                        each["corpus"],
                        f"{row['doubted']:,} of {each['of']:,}",
                        f"{row['doubted_bad']:,} of {each['bad']:,}",
                        str(row["doubted_chrf"]),
                        "" if row["trusted_chrf"] is None else str(row["trusted_chrf"]),
                    ]
                )
    return markdown_table(table)


def main() -> None:
    """Measure, and write down what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=Path("en-de"))
    parser.add_argument("--data", type=Path, default=os.environ.get("HEEDFUL_DATA"))
    parser.add_argument("--part", choices=("valid", "test"), default="test")
    parser.add_argument("--most", type=int, default=1000, help="examples of a set")
    parser.add_argument("--translated", type=int, default=1000, help="of a set, by the model")
    parser.add_argument("--sentences", type=int, default=400, help="for the speed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    if arguments.data is None:
        say("skipped: give the corpora by --data or HEEDFUL_DATA")
        return
    bench = Bench(arguments)
    rows: list[dict[str, Any]] = []
    real = []
    speed: dict[str, Any] = {}
    for corpus in corpora(Path(arguments.data), arguments.part, arguments.most):
        rows += bench.damages(corpus)
        if corpus.uses_model:
            real.append(bench.translations(corpus))
            if not speed:
                speed = bench.speed(corpus)
    command = f"python benchmarks/checks.py --data DIR --part {arguments.part}"
    name = "checks" if arguments.part == "test" else "checks-valid"
    found = {"damages": rows, "translations": real, "bad_below_chrf": BAD, "speed": speed}
    write_result(arguments.results, name, f"{command} --most {arguments.most}", found)
    folder = arguments.results / name
    (folder / "damages.md").write_text(damage_table(rows), encoding="utf-8")
    (folder / "translations.md").write_text(real_table(real), encoding="utf-8")


if __name__ == "__main__":
    main()
