"""What keeping to the source gives: capitals.

    python benchmarks/consistency.py --model en-de --data DIR [--sentences 500]

DIR holds tatoeba/en-de.tsv.gz and multi30k/raw/test_2016_flickr.{en,de}.gz (or set HEEDFUL_DATA).
Capitals: the first --sentences sentences of each corpus are translated as they are, in capitals
without `capitals` and with it; chrF and BLEU ignore case. "lower" is the same with every word in
lower case, instead of the form that has the fewest tokens. Prints one JSON line, which also goes to
RESULTS/consistency/result.json.
"""

from __future__ import annotations

import gzip
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report import new_parser, parse, write_result

from heedful.evaluate.corpus_metrics import corpus_scores
from heedful.pipelines.translation import TranslationPipeline
from heedful.quality.consistency import ConsistentTranslation

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "pretrained"))

from tatoeba import one_reference_each, split_pairs  # noqa: E402 (a script of the folder above)

LANGUAGES = ("en", "de")

Pairs = Sequence[tuple[str, str]]


class _LowerCase(ConsistentTranslation):
    """Words in capitals become lower case, whatever the vocabulary has."""

    def count_tokens(self, words: Sequence[str]) -> list[int]:
        return [0] * len(words)


def read_pairs(data: Path) -> dict[str, Pairs]:
    """The test sentences of both corpora, in an order of their own."""
    tatoeba = one_reference_each(split_pairs(data / "tatoeba" / "en-de.tsv.gz")["test"])
    random.Random(1).shuffle(tatoeba)  # they are sorted by length
    sides = []
    for side in LANGUAGES:
        path = data / "multi30k" / "raw" / f"test_2016_flickr.{side}.gz"
        with gzip.open(path, "rt", encoding="utf-8") as file:
            sides.append(file.read().splitlines())
    return {"tatoeba": tatoeba, "multi30k": list(zip(*sides, strict=True))}


def scores(outputs: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """BLEU and chrF, whatever the case."""
    lower = [[text.lower() for text in texts] for texts in (outputs, references)]
    found = corpus_scores(lower[0], [lower[1]], ["bleu", "chrf"])
    return {name: round(each.score, 2) for name, each in found.items()}


def measure_capitals(pipeline: TranslationPipeline, pairs: Pairs) -> dict[str, Any]:
    """Scores of sentences as they are and in capitals."""
    sources, references = zip(*pairs, strict=True)
    upper = [source.upper() for source in sources]
    ours, lower = (
        kind(pipeline, capitals=True, languages=LANGUAGES)
        for kind in (ConsistentTranslation, _LowerCase)
    )
    return {
        "as_it_is": scores(pipeline.translate(sources), references),
        "in_capitals": {
            "without": scores(pipeline.translate(upper), references),
            "with": scores(ours.translate(upper), references),
            "lower": scores(lower.translate(upper), references),
        },
    }


def main() -> None:
    """Measure, and write the result."""
    parser = new_parser(__doc__, rounds=5)
    parser.add_argument("--sentences", type=int, default=500)
    arguments = parse(parser)
    if arguments is None:
        return
    pipeline = TranslationPipeline.load(arguments.model, device="cpu")
    results: dict[str, Any] = {}
    for name, pairs in read_pairs(Path(arguments.data)).items():
        results[name] = {"capitals": measure_capitals(pipeline, pairs[: arguments.sentences])}
    command = (
        f"python benchmarks/consistency.py --model {Path(arguments.model).name} --data DIR "
        f"--sentences {arguments.sentences}"
    )
    write_result(
        arguments.results, "consistency", command, {"sentences": arguments.sentences, **results}
    )


if __name__ == "__main__":
    main()
