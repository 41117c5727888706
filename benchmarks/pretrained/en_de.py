"""Make `en-de`, the translator at hand for everyday sentences: one command.

    python benchmarks/pretrained/en_de.py --data DIR

DIR holds tatoeba/en-de.tsv.gz (or set HEEDFUL_DATA). tatoeba.py splits it so that no sentence of
the validation and test parts, on either side, is trained on. A first model learns from people's
translations (en_de.toml). It translates the sources it was trained on, and a second begins where it
ended and learns from people's translations and from its own (en_de_second.toml; Kim and Rush 2016,
with the student as its own teacher). A third learns, besides, from sentences of a grammar
(grammar_sentences.py) in which one word decides another (en_de_third.toml), and a fourth and a
fifth do so once more. The test part is translated by the last as it is stored, and scored against
the first and against all translations that a sentence has there; the grammar's tests are scored by
the words that they want.

Runs that were stopped go on with --resume. --first, --second and --fourth take a model in the place
of that run and those before it, and --finish publishes the fifth run as it is.
tree_heads.py then writes what heads do into the card.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import grammar_sentences  # noqa: E402 (scripts of these folders)
from driver import heedful, new_parser, parse  # noqa: E402 (scripts of the folder above)
from noted_head import noted_head  # noqa: E402
from publish import store, write_card  # noqa: E402
from tatoeba import one_reference_each, split_pairs, write_pairs  # noqa: E402

from heedful.config import read_toml  # noqa: E402
from heedful.pretrained.catalogue import CARD_FILE, Card  # noqa: E402
from heedful.text.tokenizer_pair import WRITING_FILE  # noqa: E402

SENTENCES = (
    ("The cat sat on the mat because it was tired.", "What does “it” stand for?"),
    ("I love cats.", "Three words, three pieces"),
    ("The animal didn't cross the street because it was too tired.", "“it” is the animal"),
    ("The animal didn't cross the street because it was too wide.", "“it” is the street"),
    ("I saw the man with the telescope.", "Who has the telescope?"),
    ("The bank is closed today.", "A bank for money"),
    ("She sat on the bank of the river.", "A bank of a river"),
)
"""The sentences of the documents that the studio's course follows."""

TESTS = {
    "known": "new combinations of known words",
    "unseen": "with words that its training sentences never have",
    "pattern": "of a pattern that was not trained on",
}
"""Files of the grammar's tests."""

TAUGHT = 60_000
"""Pairs whose sources the second model translates for the third."""

MEASURED_ON = 60
"""Held-out sentences in the card, on which heads are named."""


def main() -> None:
    """Train five times, store, translate the tests, write the card."""
    arguments = _parse()
    run = arguments.run or Path("runs") / "pretrained-en-de"
    run.parent.mkdir(parents=True, exist_ok=True)
    parts = split_pairs(arguments.data / "tatoeba" / "en-de.tsv.gz")
    made = grammar_sentences.parts()
    first = arguments.first or run.with_name(f"{run.name}-first")
    second = arguments.second or run.with_name(f"{run.name}-second")
    third = run.with_name(f"{run.name}-third")
    fourth = arguments.fourth or run.with_name(f"{run.name}-fourth")
    if not arguments.finish:
        people, valid = run.with_suffix(".train.tsv"), run.with_suffix(".valid.tsv")
        write_pairs(people, parts["train"])
        write_pairs(valid, one_reference_each(parts["valid"]))
        if arguments.second is None:
            if arguments.first is None:
                _train(first, "en_de.toml", [people], valid, arguments)
            files = [people, _teacher(first, parts["train"], run.with_suffix(".first.tsv"))]
            _train(second, "en_de_second.toml", files, valid, arguments, first)
        grammar = run.with_suffix(".grammar.tsv")
        grammar.write_text("".join(f"{line}\n" for line in made["train"]), encoding="utf-8")
        some = random.Random(2).sample(parts["train"], TAUGHT)
        files = [people, _teacher(second, some, run.with_suffix(".second.tsv")), grammar]
        if arguments.fourth is None:
            _train(third, "en_de_third.toml", files, valid, arguments, second)
            _train(fourth, "en_de_third.toml", files, valid, arguments, third)
        _train(run, "en_de_third.toml", files, valid, arguments, fourth)
    # A model that is given stands for the runs before it.
    runs = [first, second, third, fourth, run]
    minutes = sum(map(_minutes, runs[3 if arguments.fourth else 1 if arguments.second else 0 :]))
    place = store(run, "en-de")
    test = _evaluate(place, parts["test"], run)
    by_pattern, tests = _by_pattern(place, made, run)
    test += by_pattern
    held_out = [source for source, _ in one_reference_each(parts["valid"])]
    card = {
        "title": "English to German, everyday sentences",
        "summary": "Translates short everyday sentences from English to German",
        "task": "translation",
        "languages": ["en", "de"],
        "data": f"Tatoeba (2018), {len(parts['train']):,} sentence pairs, and their sources with "
        f"the translations of a first model; {len(made['train']):,} sentences of a grammar, in "
        "which one word decides another",
        "licence": "CC BY 2.0 FR",
        "attribution": "The contributors of tatoeba.org, in the selection of manythings.org/anki",
        "command": "python benchmarks/pretrained/en_de.py --data DIR",
        "scores": test,
        "limits": [
            "It knows the words of everyday sentences. A rare word becomes one that looks alike.",
            "It was trained on single short sentences: give it one at a time, none of them long.",
            "Names other than those of the data, above all Tom and Mary, may change.",
            "It does not look beyond the sentence for what “it”, “you” or “bank” stand for. Within "
            "it, what it learned from the grammar's words holds for those words: a noun that it "
            "rarely saw may get a wrong gender and a wrong pronoun (see the scores).",
        ],
        "noted_head": noted_head(place, tests),
        "examples": [{"text": text, "about": about} for text, about in SENTENCES],
        "sentences": random.Random(1).sample(held_out, MEASURED_ON),
    }
    # After the scores, which are those of the model itself. It writes "20 Häuser" for "2 houses".
    stated = {"schema_version": 1, "numbers": "localize", "languages": ["en", "de"]}
    (place / WRITING_FILE).write_text(json.dumps(stated, sort_keys=True) + "\n", encoding="utf-8")
    write_card(place, card, minutes=minutes)
    print(json.dumps({"model": "en-de", "scores": test}, ensure_ascii=False))


def _parse() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--resume", action="store_true", help="go on with a run that was stopped")
    parser.add_argument("--first", type=Path, help="a model in the place of the first run")
    parser.add_argument("--second", type=Path, help="a model in the place of the second run")
    parser.add_argument("--fourth", type=Path, help="a model in the place of the fourth run")
    parser.add_argument("--finish", action="store_true", help="publish a run as it is")
    return parse(parser)


def _minutes(model: Path) -> float:
    """Minutes that a training took: by the run's own figures, or by the card of a model."""
    if (model / CARD_FILE).exists():
        return Card.parse(read_toml(model / CARD_FILE), where=str(model)).minutes
    lines = (model / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return max(float(json.loads(line).get("seconds", 0)) for line in lines) / 60


def _train(
    run: Path,
    settings: str,
    files: list[Path],
    valid: Path,
    arguments: argparse.Namespace,
    init: Path | None = None,
) -> None:
    words = ["train", str(run)]
    if (run / "config.toml").exists() and arguments.resume:
        words.append("--resume")
    else:
        words += ["--config", str(HERE / settings), "--train", *map(str, files)]
        words += ["--valid", str(valid)]
        words += [] if init is None else ["--init", str(init)]
    heedful([*words, *arguments.extra])


def _teacher(model: Path, pairs: list[tuple[str, str]], path: Path) -> Path:
    """Write each source once with the model's translation, and return the file."""
    if path.exists():
        return path
    sources = list(dict.fromkeys(source for source, _ in pairs))
    file = path.with_suffix(".en")
    file.write_text("".join(f"{source}\n" for source in sources), encoding="utf-8")
    said = heedful(["translate", str(model), "-i", str(file), "--beam", "4"])
    write_pairs(path, list(zip(sources, said.splitlines(), strict=True)))
    return path


def _evaluate(place: Path, pairs: list[tuple[str, str]], run: Path) -> list[dict[str, Any]]:
    """Scores of the stored model on the test part."""
    import sacrebleu

    references: dict[str, list[str]] = {}
    for source, target in pairs:
        references.setdefault(source, []).append(target)
    source = run.with_suffix(".test.en")
    source.write_text("".join(f"{each}\n" for each in references), encoding="utf-8")
    said = heedful(["translate", str(place), "-i", str(source), "--beam", "5"])
    given = said.splitlines()
    most = max(map(len, references.values()))
    # Sentences have one to many translations; lists of references are padded with the last.
    every = [
        [(refs[k] if k < len(refs) else refs[-1]) for refs in references.values()]
        for k in range(most)
    ]
    sentences = f"{len(references):,} held-out sentences of Tatoeba"
    scores = []
    for refs, against in (
        (every[:1], "one translation"),
        (every, f"all {len(pairs):,} translations"),
    ):
        for metric in (sacrebleu.metrics.BLEU(), sacrebleu.metrics.CHRF()):
            found = metric.corpus_score(given, refs, n_bootstrap=1000)
            low, high = (round(float(found._mean + s * found._ci), 1) for s in (-1, 1))
            scores.append(
                {
                    "metric": "BLEU" if "bleu" in found.name.lower() else "chrF",
                    "data": sentences,
                    "value": round(float(found.score), 1),
                    "interval": [low, high],
                    "against": against,
                    "note": f"Beam 5; {metric.get_signature()}",
                }
            )
    return scores


def _by_pattern(
    place: Path, made: dict[str, list[str]], run: Path
) -> tuple[list[dict[str, Any]], list[grammar_sentences.Test]]:
    """Share of the grammar's test sentences whose translation has the words that are wanted.

    Returns:
        Scores, and the tests with new combinations of known words.
    """
    scores, known = [], []
    for part, what in TESTS.items():
        file = run.with_suffix(f".{part}.tsv")
        file.write_text("".join(f"{line}\n" for line in made[part]), encoding="utf-8")
        items = list(grammar_sentences.read_tests(file))
        known += items if part == "known" else []
        sources = run.with_suffix(f".{part}.en")
        sources.write_text("".join(f"{source}\n" for source, *_ in items), encoding="utf-8")
        words = ["translate", str(place), "-i", str(sources), "--beam", "5", "--split", "lines"]
        said = heedful(words).splitlines()  # two sentences of a line are one test
        right: dict[str, list[bool]] = {}
        for translation, (_, target, wanted, pattern) in zip(said, items, strict=True):
            fine = all(grammar_sentences.has(translation, each) for each in wanted or (target,))
            right.setdefault(pattern, []).append(fine)
        for pattern, found in right.items():
            scores.append(
                {
                    "metric": f"right: {pattern}",
                    "data": f"{len(found)} sentences of the grammar, {what}",
                    "value": round(sum(found) / len(found), 3),
                    "note": "Beam 5; the words that the sentence is about must be there",
                }
            )
    return scores, known


if __name__ == "__main__":
    main()
