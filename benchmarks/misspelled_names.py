"""What copying misspelled names gives: `--copy-unknown` on cities in the place of names.

    python benchmarks/misspelled_names.py --model en-de --data DIR [--sentences 500]

DIR holds tatoeba/en-de.tsv.gz and multi30k/raw/test_2016_flickr.{en,de}.gz (or set HEEDFUL_DATA).
In test sentences of Tatoeba with one name, the same in source and reference, it becomes in both a
city of CLDR's time zones that both languages spell alike. Counts the translations that have it, and
their scores; then how many translations of sentences as they are the flag changes, and the scores
of those before and after. Prints one JSON line, which also goes to RESULTS/misspelled-names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

from babel.core import Locale
from consistency import LANGUAGES, Pairs, read_pairs, replace_names, scores
from report import new_parser, parse, say, write_result

from heedful.apps.quality.consistency import ConsistentTranslation
from heedful.pipelines.translation import TranslationPipeline


def cities() -> list[str]:
    """Return cities of one word of five letters and more, in the order of the alphabet."""
    known = [Locale.parse(language).time_zones for language in LANGUAGES]
    zones = {zone: zone.rsplit("/", 1)[-1] for zone in available_timezones()}
    return sorted(
        name
        for zone, name in zones.items()
        if re.fullmatch(r"(Africa|America|Asia|Europe)/[A-Z][a-z]{4,}", zone)
        if all(each.get(zone, {}).get("city", name) == name for each in known)
    )


def measure(pipeline: TranslationPipeline, pairs: Pairs, count: int) -> dict[str, Any]:
    """Compare translations with and without the flag."""
    ours = ConsistentTranslation(pipeline, copy_unknown=True, languages=LANGUAGES)
    named = replace_names(pairs, count, names=cities())
    result: dict[str, Any] = {"sentences": len(named)}
    for name, translator in (("without", pipeline), ("with", ours)):
        outputs = translator.translate([source for source, _ in named])
        has = [_has(output, *pair) for output, pair in zip(outputs, named, strict=True)]
        result[name] = {
            "copied_percent": round(100 * sum(has) / len(has), 1),
            **scores(outputs, [reference for _, reference in named]),
        }
    return result


def _has(output: str, source: str, reference: str) -> bool:
    """Whether a translation has each city that source and reference have."""
    both = set(re.findall(r"\b[A-Z]\w{4,}", source)) & set(re.findall(r"\b[A-Z]\w{4,}", reference))
    return all(re.search(rf"\b{name}", output) for name in both)


def changes(pipeline: TranslationPipeline, pairs: Pairs) -> dict[str, Any]:
    """Compare translations of sentences as they are."""
    sources, references = (list(side) for side in zip(*pairs, strict=True))
    ours = ConsistentTranslation(pipeline, copy_unknown=True, languages=LANGUAGES)
    before, after = (list(map(str, each.translate(sources))) for each in (pipeline, ours))
    changed = [i for i in range(len(pairs)) if before[i] != after[i]]
    examples = [{"source": sources[i], "before": before[i], "after": after[i]} for i in changed]

    def of_changed(texts: Sequence[str]) -> list[str]:
        return [texts[i] for i in changed]

    return {
        "sentences": len(pairs),
        "changed": len(changed),
        "scores": [scores(of_changed(each), of_changed(references)) for each in (before, after)]
        if changed
        else None,
        "examples": examples[:20],
    }


def main() -> None:
    """Measure, and write the result."""
    parser = new_parser(__doc__)
    parser.add_argument("--sentences", type=int, default=500)
    arguments = parse(parser)
    if arguments is None:
        return
    pipeline = TranslationPipeline.load(arguments.model, device="cpu")
    corpora = read_pairs(Path(arguments.data))
    found = {"cities": measure(pipeline, corpora["tatoeba"], arguments.sentences)}
    say(f"cities: {found['cities']}")
    for name, pairs in corpora.items():
        found[name] = changes(pipeline, pairs[: 2 * arguments.sentences])
    command = (
        f"python benchmarks/misspelled_names.py --model {Path(arguments.model).name} --data DIR "
        f"--sentences {arguments.sentences}"
    )
    write_result(arguments.results, "misspelled-names", command, found)


if __name__ == "__main__":
    main()
