"""What keeping to the source gives: capitals, numbers and unknown words.

    python benchmarks/consistency.py --model en-de --data DIR [--sentences 500]

DIR holds tatoeba/en-de.tsv.gz and multi30k/raw/test_2016_flickr.{en,de}.gz (or set HEEDFUL_DATA).
Capitals: the first --sentences sentences of each corpus are translated as they are, in capitals
without `capitals` and with it; chrF and BLEU ignore case. "lower" is the same with every word in
lower case, instead of the form that has the fewest tokens. Numbers: the test sentences that have
figures, and --sentences of the training part of Tatoeba whose number, the same in source and
reference, is replaced by a random one in both; a third have groups and decimals. Unknown words:
test sentences of Tatoeba with one name, the same in source and reference, that becomes one of
another script in both; "greedy_not_required" puts names in their places but does not require them.
Prints one JSON line, which also goes to RESULTS/consistency/result.json.
"""

from __future__ import annotations

import gzip
import random
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report import new_parser, parse, write_result

from heedful.apps.quality.consistency import ConsistentTranslation
from heedful.apps.quality.number_check import check_numbers
from heedful.apps.quality.number_forms import find_numbers
from heedful.evaluate.corpus_metrics import corpus_scores
from heedful.pipelines.translation import TranslationPipeline

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "pretrained"))

from tatoeba import one_reference_each, split_pairs  # noqa: E402 (a script of the folder above)

LANGUAGES = ("en", "de")

FIGURES = r"\d+(?:[.,]\d+)*"

Pairs = Sequence[tuple[str, str]]


SCRIPTS = (
    "王小明", "李雷", "Дмитрий", "Лев Толстой", "Ελένη", "محمد", "יעקב", "佐藤", "さくら", "김민준",
    "अमित", "สมชาย", "Łucja", "Nguyễn",
)  # fmt: skip


class _LowerCase(ConsistentTranslation):
    """Words in capitals become lower case, whatever the vocabulary has."""

    def count_tokens(self, words: Sequence[str]) -> list[int]:
        return [0] * len(words)


def read_pairs(data: Path, part: str = "test") -> dict[str, Pairs]:
    """The sentences of both corpora for a part, `valid` or `test`, in an order of their own."""
    tatoeba = one_reference_each(split_pairs(data / "tatoeba" / "en-de.tsv.gz")[part])
    random.Random(1).shuffle(tatoeba)  # they are sorted by length
    name = {"valid": "val", "test": "test_2016_flickr"}[part]
    sides = []
    for side in LANGUAGES:
        path = data / "multi30k" / "raw" / f"{name}.{side}.gz"
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


def replace_numbers(pairs: Pairs, count: int) -> Pairs:
    """Sentences with a number of two digits at least, which becomes a random one."""
    draw = random.Random(2)
    changed: list[tuple[str, str]] = []
    rows = list(pairs)
    draw.shuffle(rows)
    for source, reference in rows:
        places = [re.findall(r"\d+", text) for text in (source, reference)]
        if len(changed) == count or len(places[0]) != 1 or places[0] != places[1]:
            continue
        figures = places[0][0]
        if len(figures) < 2 or re.search(
            r"[:.,/'’-]\d|\d[:/'’-]|\d[.,]\d|\d[a-z]", f"{source} {reference}"
        ):
            continue
        value = draw.randrange(10 ** (len(figures) - 1), 10 ** len(figures))
        ours, theirs = str(value), str(value)
        if len(changed) % 3 == 0:
            ours = f"{draw.randrange(1000, 1_000_000):,}.{draw.randrange(10, 100)}"
            theirs = ours.translate(str.maketrans(",.", ".,"))
        changed.append((source.replace(figures, ours), reference.replace(figures, theirs)))
    return changed


def measure_numbers(pipeline: TranslationPipeline, pairs: Pairs) -> dict[str, Any]:
    """Sentences whose numbers agree, and BLEU, by the form of numbers."""
    sources, references = zip(*pairs, strict=True)
    found: dict[str, Any] = {"sentences": len(pairs)}
    for form in ("model", "keep", "localize"):
        ours = pipeline
        if form != "model":
            ours = ConsistentTranslation(pipeline, numbers=form, languages=LANGUAGES)
        started = time.process_time()
        outputs = ours.translate(sources)
        seconds = time.process_time() - started
        agree = [
            not check_numbers(*row, LANGUAGES).failed for row in zip(sources, outputs, strict=True)
        ]
        written = [
            set(re.findall(FIGURES, reference)) <= set(re.findall(FIGURES, output))
            for reference, output in zip(references, outputs, strict=True)
        ]
        found[form] = {
            "agree_percent": _percent(agree),
            "as_in_reference_percent": _percent(written),
            **scores(outputs, references),
            "processor_seconds": round(seconds, 2),
        }
        if form != "model":
            found[form] |= {"mended": ours.mended, "unmended": ours.unmended}
    return found


def replace_names(
    pairs: Pairs, count: int, *, but: str | None = None, names: Sequence[str] = SCRIPTS
) -> Pairs:
    """Sentences whose one name becomes another, by default a name of another script."""
    changed: list[tuple[str, str]] = []
    for source, reference in pairs:
        words = [re.findall(r"\b[A-Z][a-z]{2,}\b", text) for text in (source, reference)]
        found = [word for word in words[0] if words[0].count(word) == words[1].count(word) == 1]
        if len(changed) < count and len(found) == 1 and found[0] != but:
            new = names[len(changed) % len(names)]
            changed.append((source.replace(found[0], new), reference.replace(found[0], new)))
    return changed


def measure_unknown(pipeline: TranslationPipeline, pairs: Pairs) -> dict[str, Any]:
    """Sentences whose foreign name is in the translation, and scores."""
    sources, references = zip(*pairs, strict=True)
    found: dict[str, Any] = {"sentences": len(pairs)}
    ours = ConsistentTranslation(pipeline, copy_unknown=True, languages=LANGUAGES)
    for name, translator, options in (
        ("without", pipeline, {}),
        ("with", ours, {}),
        ("greedy_not_required", ours, {"sampling": True, "temperature": 0.0}),
    ):
        outputs = translator.translate(sources, **options)
        copied = [
            any(re.search(rf"(?<!\w){each}(?!\w)", output) for each in SCRIPTS if each in source)
            for source, output in zip(sources, outputs, strict=True)
        ]
        found[name] = {"copied_percent": _percent(copied), **scores(outputs, references)}
    return found


def _percent(flags: Sequence[bool]) -> float:
    return round(100 * sum(flags) / len(flags), 2)


def main() -> None:
    """Measure, and write the result."""
    parser = new_parser(__doc__, rounds=5)
    parser.add_argument("--sentences", type=int, default=500)
    arguments = parse(parser)
    if arguments is None:
        return
    pipeline = TranslationPipeline.load(arguments.model, device="cpu")
    results: dict[str, Any] = {}
    with_figures: list[tuple[str, str]] = []
    for name, pairs in read_pairs(Path(arguments.data)).items():
        results[name] = {"capitals": measure_capitals(pipeline, pairs[: arguments.sentences])}
        with_figures += [pair for pair in pairs if find_numbers(pair[0])]
        if name == "tatoeba":
            results["unknown_words"] = {
                "any_name": measure_unknown(pipeline, replace_names(pairs, arguments.sentences)),
                "but_tom": measure_unknown(
                    pipeline, replace_names(pairs, arguments.sentences, but="Tom")
                ),
            }
    train = split_pairs(Path(arguments.data) / "tatoeba" / "en-de.tsv.gz")["train"]
    results["numbers"] = {
        "of_test_sentences": measure_numbers(pipeline, with_figures),
        "replaced": measure_numbers(pipeline, replace_numbers(train, arguments.sentences)),
    }
    command = (
        f"python benchmarks/consistency.py --model {Path(arguments.model).name} --data DIR "
        f"--sentences {arguments.sentences}"
    )
    write_result(
        arguments.results, "consistency", command, {"sentences": arguments.sentences, **results}
    )


if __name__ == "__main__":
    main()
