"""What the check `lost_words` finds: words planted in a source, and translations that are poor.

    python benchmarks/lost_words.py --model en-de --data DIR [--part test] [--sentences 1000]

DIR holds tatoeba/en-de.tsv.gz and multi30k/raw (or set HEEDFUL_DATA). The model translates held-out
sentences. Then a word that the translation cannot have is planted in each source: an adjective
after an article, or a word before the full stop. Counts the planted words that the check names, and
compares the sentence chrF of translations that it doubts with that of the others. The threshold was
chosen on --part valid. Prints one JSON line, which also goes to RESULTS/lost-words-PART.
"""

from __future__ import annotations

import random
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from consistency import read_pairs
from report import new_parser, parse, say, write_result

from heedful.apps.quality.lost_words import gains_without_words
from heedful.evaluate.corpus_metrics import build_metric
from heedful.pipelines.translation import TranslationPipeline

ADJECTIVES = ("wooden", "expensive", "yellow", "heavy", "broken", "Italian", "famous", "empty")
ENDINGS = ("yesterday", "tomorrow", "together", "upstairs", "secretly", "again")
THRESHOLDS = (0.0, 0.3, 0.5, 1.0)
SEED = 5

_ARTICLE = re.compile(r"\b(?:the|a|my|his|her|this) (?=[a-z]{3})")
_END = re.compile(r"[.!?]\s*$")


def plant(source: str, chosen: random.Random) -> tuple[str, str] | None:
    """Return a source with a word more, and that word; None where none fits."""
    article, end = _ARTICLE.search(source), _END.search(source)
    if article is not None and chosen.random() < 0.5:
        word = chosen.choice(ADJECTIVES)
        return f"{source[: article.end()]}{word} {source[article.end() :]}", word
    if end is None:
        return None
    word = chosen.choice(ENDINGS)
    return f"{source[: end.start()]} {word}{source[end.start() :]}", word


def measure(
    pipeline: TranslationPipeline, sources: Sequence[str], references: Sequence[str]
) -> dict[str, Any]:
    """Translate, check, plant words, and check again."""
    started = time.perf_counter()
    translations = [str(each) for each in pipeline.translate(sources)]
    translated = time.perf_counter()
    gains = gains_without_words(pipeline, list(zip(sources, translations, strict=True)))
    checked = time.perf_counter()
    chosen = random.Random(SEED)
    planted: list[tuple[str, str, str]] = []
    for source, target in zip(sources, translations, strict=True):
        new = plant(source, chosen)
        if new is not None and new[1] not in source:
            planted.append((*new, target))
    again = gains_without_words(pipeline, [(source, target) for source, _, target in planted])
    metric = build_metric("chrf")
    quality = [
        metric.sentence_score(target, [reference]).score
        for target, reference in zip(translations, references, strict=True)
    ]
    result: dict[str, Any] = {
        "sentences": len(sources),
        "planted": len(planted),
        "seconds": {"translate": translated - started, "check": checked - translated},
    }
    for least in THRESHOLDS:
        doubted = [any(gain > least for _, gain in words) for words in gains]
        found = sum(
            any(gain > least and source[each.start : each.end] == word for each, gain in words)
            for (source, word, _), words in zip(planted, again, strict=True)
        )
        result[f"above {least}"] = {
            "planted_found": round(found / len(planted), 3),
            "doubted": round(statistics.mean(doubted), 3),
            "chrf_doubted": mean(q for q, is_poor in zip(quality, doubted, strict=True) if is_poor),
            "chrf_others": mean(
                q for q, is_poor in zip(quality, doubted, strict=True) if not is_poor
            ),
        }
    return result


def mean(numbers: Any) -> float | None:
    """Return the mean of numbers; None of none."""
    kept = list(numbers)
    return round(statistics.mean(kept), 1) if kept else None


def main() -> None:
    """Measure on both corpora, and write down what was found."""
    parser = new_parser(__doc__, model="en-de")
    parser.add_argument("--part", choices=("valid", "test"), default="test")
    parser.add_argument("--sentences", type=int, default=1000)
    arguments = parse(parser)
    if arguments is None:
        return
    pipeline = TranslationPipeline.load(arguments.model, device="cpu")
    found = {}
    for corpus, pairs in read_pairs(Path(arguments.data), arguments.part).items():
        kept = pairs[: arguments.sentences]
        found[corpus] = measure(pipeline, [a for a, _ in kept], [b for _, b in kept])
        say(f"{corpus}: {found[corpus]}")
    command = (
        f"python benchmarks/lost_words.py --data DIR --part {arguments.part} "
        f"--sentences {arguments.sentences}"
    )
    write_result(arguments.results, f"lost-words-{arguments.part}", command, found)


if __name__ == "__main__":
    main()
