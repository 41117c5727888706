"""What a second try gives: translations in doubt, before and after `--second-try`.

    python benchmarks/second_try.py --model en-de --data DIR [--sentences 1000]

DIR holds multi30k/raw/test_2016_flickr.{en,de}.gz and tatoeba/en-de.tsv.gz (or set HEEDFUL_DATA).
The sentences are translated by the default search and checked; those in doubt are tried again.
Counts how many were in doubt, how many of them changed, how many pass all checks afterwards, and
how good they are: BLEU and chrF of those in doubt, and of all sentences, before and after. Prints
one JSON line, which also goes to RESULTS/second-try/result.json.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glossary import read_corpus
from report import say, write_result

from heedful.apps.quality.checker import Checker
from heedful.apps.quality.second_try import try_again
from heedful.evaluate.corpus_metrics import corpus_scores
from heedful.pipelines.translation import TranslationPipeline
from heedful.search.search_settings import SearchSettings

HERE = Path(__file__).resolve().parent


def scores(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return BLEU and chrF of some sentences; none for none."""
    if not outputs:
        return {}
    found = corpus_scores(outputs, [references], ["bleu", "chrf"])
    return {name: round(score.score, 2) for name, score in found.items()}


def measure(
    pipeline: TranslationPipeline, sources: Sequence[str], references: Sequence[str]
) -> dict[str, Any]:
    """Translate, check, try again, and compare."""
    settings = SearchSettings()
    checker = Checker(pipeline, ("en", "de"))
    first = pipeline.translate(sources, settings=settings, alignment=True)
    reports = checker.reports(sources, first)
    second, later = try_again(checker, sources, first, reports, settings)
    doubted = [i for i, report in enumerate(reports) if report.in_doubt]
    changed = [i for i in doubted if str(first[i]) != str(second[i])]
    texts = {"before": list(map(str, first)), "after": list(map(str, second))}
    return {
        "sentences": len(sources),
        "doubted": len(doubted),
        "changed": len(changed),
        "pass_afterwards": sum(not later[i].in_doubt for i in doubted),
        "failed_before": dict(Counter(name for i in doubted for name in reports[i].failed)),
        "failed_after": dict(Counter(name for i in doubted for name in later[i].failed)),
        **{
            f"{name}_{when}": scores([text[i] for i in places], [references[i] for i in places])
            for name, places in (
                ("doubted", doubted),
                ("changed", changed),
                ("all", range(len(sources))),
            )
            for when, text in texts.items()
        },
    }


def main() -> None:
    """Measure on both corpora, and write down what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=Path("en-de"))
    parser.add_argument("--data", type=Path, default=os.environ.get("HEEDFUL_DATA"))
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--results", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    if arguments.data is None:
        say("skipped: give the corpora by --data or HEEDFUL_DATA")
        return
    pipeline = TranslationPipeline.load(arguments.model, device="cpu")
    found = {}
    for name in ("multi30k", "tatoeba"):
        pairs = read_corpus(Path(arguments.data), name)[1][: arguments.sentences]
        sources, references = map(list, zip(*pairs, strict=True))
        found[name] = measure(pipeline, sources, references)
        say(f"{name}: {found[name]}")
    command = f"python benchmarks/second_try.py --data DIR --sentences {arguments.sentences}"
    write_result(arguments.results, "second-try", command, found)


if __name__ == "__main__":
    main()
