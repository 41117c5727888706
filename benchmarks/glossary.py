"""What a glossary gives and costs: the same sentences with it and without.

    python benchmarks/glossary.py --model en-de --data DIR --corpus tatoeba [--terms 300]

DIR holds tatoeba/en-de.tsv.gz, multi30k/raw/{train,test_2016_flickr}.{en,de}.gz or
python_docs/en-fr.tsv.gz (or set HEEDFUL_DATA); the model must translate into the corpus's language.
A glossary is drawn from the training part: words of the source with the word they stand beside most
often (Dice coefficient) and its other forms, as a person would list them. The first --sentences
sentences of the test part are translated without it and with it, by the default search. A term is
satisfied where one of its targets is a word of the translation, as often as the term is in the
source. References are not bound to the glossary, so BLEU is also taken of the sentences with terms
whose references have them all: there a glossary says what is right. A second glossary, `several`,
allows for each term whatever else the training part often has beside it (street: Straße | Gehweg),
as somebody does who wants a term kept in bounds and not one word of it. Speed is measured in turns
on the first --timed sentences. Prints one JSON line, which also goes to
RESULTS/glossary-CORPUS/result.json.
"""

from __future__ import annotations

import gzip
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from report import new_parser, parse, say, write_result

from heedful.evaluate.corpus_metrics import corpus_scores
from heedful.pipelines.glossary import Glossary, Term
from heedful.pipelines.translation import TranslationPipeline

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "pretrained"))

from tatoeba import one_reference_each, split_pairs  # noqa: E402 (a script of the folder above)

FEWEST, LETTERS, SURE, ALSO, STEM, FORMS = 15, 4, 0.4, 0.02, 4, 6
OTHER, OTHERS = 0.1, 12
"""A term stands in so many pairs and has so many letters; its target has at least the first of the
coefficients. Its other forms have the second and begin with as many of its letters; at most so many
are given. Other targets of `several` have the coefficient OTHER."""

Pair = tuple[str, str]


def read_corpus(data: Path, corpus: str) -> tuple[list[Pair], list[Pair]]:
    """The pairs that a glossary is drawn from, and those that are translated."""
    if corpus == "tatoeba":
        parts = split_pairs(data / "tatoeba" / "en-de.tsv.gz")
        test = one_reference_each(parts["test"])
        random.Random(1).shuffle(test)  # they are sorted by length
        return parts["train"], test
    if corpus == "multi30k":
        folder = data / "multi30k" / "raw"
        train, test = (
            list(zip(*(_lines(folder / f"{part}.{side}.gz") for side in ("en", "de")), strict=True))
            for part in ("train", "test_2016_flickr")
        )
        return train, test
    rows = [tuple(line.split("\t")[:2]) for line in _lines(data / "python_docs" / "en-fr.tsv.gz")]
    pairs = [(row[0], row[1]) for row in rows]
    random.Random(1).shuffle(pairs)
    return pairs[2000:], pairs[:2000]


def _lines(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return file.read().splitlines()


def draw_glossaries(
    pairs: Sequence[Pair], count: int, fewest: int = FEWEST
) -> tuple[Glossary, Glossary]:
    """Draw terms: words, each with the words of the other language that stand beside it.

    Args:
        pairs: of the training part.
        count: most terms.
        fewest: pairs that a term stands in.

    Returns:
        Glossaries of the same terms, with the forms of one word each, and with other words, too.
    """
    sources: Counter[str] = Counter()
    targets: Counter[str] = Counter()
    together: Counter[Pair] = Counter()
    for source, target in pairs:
        rows = [set(re.findall(rf"[^\W\d_]{{{LETTERS},}}", text)) for text in (source, target)]
        sources.update(rows[0])
        targets.update(rows[1])
        together.update((one, other) for one in rows[0] for other in rows[1])
    shares: dict[str, list[tuple[float, str]]] = {}
    for (one, other), number in together.items():
        share = 2 * number / (sources[one] + targets[other])
        if sources[one] >= fewest and share >= ALSO:
            shares.setdefault(one, []).append((-share, other))
    sure = sorted(word for word, row in shares.items() if -min(row)[0] >= SURE)
    chosen = random.Random(1).sample(sure, min(count, len(sure)))
    ranked = {word: sorted(shares[word]) for word in chosen}
    return (
        Glossary([Term(word, _forms(row)) for word, row in ranked.items()]),
        Glossary([Term(word, _several(row)) for word, row in ranked.items()]),
    )


def _forms(ranked: Sequence[tuple[float, str]]) -> tuple[str, ...]:
    """The best target and others that begin as it does."""
    stem = ranked[0][1][:STEM].lower()
    return tuple(word for _, word in ranked if word.lower().startswith(stem))[:FORMS]


def _several(ranked: Sequence[tuple[float, str]]) -> tuple[str, ...]:
    """The forms of the best target, and of other words that stand beside the term often."""
    others = [word for share, word in ranked if -share >= OTHER]
    known = [form for word in others for form in _forms([(0.0, word), *ranked])]
    return tuple(dict.fromkeys([*_forms(ranked), *known]))[:OTHERS]


def satisfied(glossary: Glossary, sources: Sequence[str], outputs: Sequence[str]) -> float:
    """The percentage of terms in the sources that the outputs have, counted in the texts."""
    found = needed = 0
    for source, output in zip(sources, outputs, strict=True):
        for term, times in Counter(each.term for each in glossary.find(source)).items():
            forms = {t for word in term.targets for t in (word, word[:1].upper() + word[1:])}
            words = re.findall(r"\w+", output)
            found += min(times, sum(word in forms for word in words))
            needed += times
    return round(100 * found / max(needed, 1), 2)


def main() -> None:
    """Translate with and without, in turns."""
    parser = new_parser(__doc__, rounds=5)
    parser.add_argument("--corpus", choices=("tatoeba", "multi30k", "python_docs"), required=True)
    parser.add_argument("--terms", type=int, default=300)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--timed", type=int, default=1000)
    arguments = parse(parser)
    if arguments is None:
        return
    train, test = read_corpus(Path(arguments.data), arguments.corpus)
    glossary, several = draw_glossaries(train, arguments.terms)
    sources, references = zip(*test[: arguments.sentences], strict=True)
    pipeline = TranslationPipeline.load(arguments.model, device="cpu")
    with_terms = [i for i, source in enumerate(sources) if glossary.find(source)]
    right = [i for i in with_terms if satisfied(glossary, [sources[i]], [references[i]]) == 100]
    results: dict[str, Any] = {}
    given = {"without": None, "with": glossary, "several": several}
    for name, terms in given.items():
        found = pipeline.translate(sources, glossary=terms)
        results[name] = {
            "terms_percent": satisfied(terms or glossary, sources, found),
            "bleu": bleu(found, references, range(len(sources))),
            "bleu_with_terms": bleu(found, references, with_terms),
            "bleu_where_right": bleu(found, references, right),
            "missing": sum(len(each.missing) for each in found),
        }
        say(f"{name}: {results[name]}")
    timed = sources[: arguments.timed]
    seconds: dict[str, list[float]] = {name: [] for name in given}
    for _ in range(arguments.rounds):
        for name, terms in given.items():
            started = time.process_time()
            pipeline.translate(timed, glossary=terms)
            seconds[name].append(time.process_time() - started)
    for name, times in seconds.items():
        results[name]["per_processor_second"] = round(
            len(timed) / sorted(times)[len(times) // 2], 1
        )
    command = (
        f"python benchmarks/glossary.py --model {Path(arguments.model).name} --data DIR "
        f"--corpus {arguments.corpus} --terms {arguments.terms} --sentences {arguments.sentences} "
        f"--timed {arguments.timed}"
    )
    write_result(
        arguments.results,
        f"glossary-{arguments.corpus}",
        command,
        {
            "terms": len(glossary),
            "sentences": len(sources),
            "sentences_with_terms": len(with_terms),
            "where_right": len(right),
            **results,
        },
    )


def bleu(outputs: Sequence[str], references: Sequence[str], numbers: Sequence[int]) -> float:
    """BLEU of the sentences of these numbers."""
    chosen = ([texts[i] for i in numbers] for texts in (outputs, references))
    hypotheses, targets = chosen
    return round(corpus_scores(hypotheses, [targets], ["bleu"])["bleu"].score, 2)


if __name__ == "__main__":
    main()
