"""Make `en-de`, the translator at hand for everyday sentences: one command.

    python benchmarks/pretrained/en_de.py --data DIR

DIR holds tatoeba/en-de.tsv.gz (or set HEEDFUL_DATA). tatoeba.py splits it so that no sentence of
the validation and test parts, on either side, is trained on. A first model learns from people's
translations (en_de.toml). It translates the sources it was trained on, and a second begins where it
ended and learns from people's translations and from its own (en_de_second.toml; Kim and Rush 2016,
with the student as its own teacher). A third learns, besides, from sentences of a grammar
(grammar_sentences.py) in which one word decides another (en_de_third.toml), and three more do so
again, the last of them for longer. On this sixth model the grammar's held-out words and its
held-out pattern are measured. The seventh learns from sentences of all words and patterns. The
eighth learns, besides, from sentences about models and machines (field_sentences.py), and is the
one that is stored: it translates the test part, scored against the first and against all
translations that a sentence has there, and the tests of both grammars, none of which it was trained
on.

Runs that were stopped go on with --resume. --first, --second, --sixth and --seventh take a model in
the place of that run and those before it, and --finish publishes the eighth run as it is. A seventh
model with a card, such as an `en-de` that is stored, gives the figures of the sixth from there.
tree_heads.py then writes what heads do into the card.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import field_sentences  # noqa: E402 (scripts of these folders)
import grammar_sentences  # noqa: E402
from driver import heedful, new_parser, parse  # noqa: E402 (scripts of the folder above)
from encoders import write  # noqa: E402
from noted_head import example_head, noted_head  # noqa: E402
from publish import minutes_of, store, write_card  # noqa: E402
from tatoeba import one_reference_each, split_pairs, write_pairs  # noqa: E402

from heedful.config import read_toml  # noqa: E402
from heedful.pretrained.catalogue import CARD_FILE  # noqa: E402
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
    "known": "which it was not trained on",
    "unseen": "which it was not trained on, with words of its last two trainings alone",
    "pattern": "which it was not trained on, of a pattern of its last two trainings alone",
    "field": "about models and machines, which it was not trained on",
}
"""Files of the grammars' tests, as the stored model translates them."""

HELD_OUT = {
    "unseen": "with words that no training had from the grammar, by the sixth of eight models",
    "pattern": "of a pattern that was not trained on, by the sixth of eight models",
}
"""Files of the first grammar, as the model translates them that had none of their words."""

TAUGHT = 60_000
"""Pairs whose sources the second model translates for the third."""

LONGER = "2000"
"""Updates of the sixth training."""

MEASURED_ON = 60
"""Held-out sentences in the card, on which heads are named."""


def main() -> None:
    """Train eight times, store, translate the tests, write the card."""
    arguments = _parse()
    run = arguments.run or Path("runs") / "pretrained-en-de"
    run.parent.mkdir(parents=True, exist_ok=True)
    parts = split_pairs(arguments.data / "tatoeba" / "en-de.tsv.gz")
    made = grammar_sentences.parts() | field_sentences.parts()
    seen = {line.split("\t")[0] for file in arguments.seen for line in _lines(file)}
    for part in TESTS:
        made[part] = [line for line in made[part] if line.split("\t")[0] not in seen]
    first = arguments.first or run.with_name(f"{run.name}-first")
    second = arguments.second or run.with_name(f"{run.name}-second")
    third, fourth, fifth = (run.with_name(f"{run.name}-{n}") for n in ("third", "fourth", "fifth"))
    sixth = arguments.sixth or run.with_name(f"{run.name}-sixth")
    seventh = arguments.seventh or run.with_name(f"{run.name}-seventh")
    if not arguments.finish:
        people, valid = run.with_suffix(".train.tsv"), run.with_suffix(".valid.tsv")
        write_pairs(people, parts["train"])
        write_pairs(valid, one_reference_each(parts["valid"]))
        if arguments.second is None and arguments.seventh is None:
            if arguments.first is None:
                _train(first, "en_de.toml", [people], valid, arguments)
            files = [people, _teacher(first, parts["train"], run.with_suffix(".first.tsv"))]
            _train(second, "en_de_second.toml", files, valid, arguments, first)
        some = random.Random(2).sample(parts["train"], TAUGHT)
        teacher = seventh if arguments.seventh else second
        files = [people, _teacher(teacher, some, run.with_suffix(".second.tsv"))]
        again = "en_de_third.toml"
        if arguments.sixth is None and arguments.seventh is None:
            grammar = write(run, "grammar.tsv", made["train"])
            for place, init in ((third, second), (fourth, third), (fifth, fourth)):
                _train(place, again, [*files, grammar], valid, arguments, init)
            longer = ("--max-steps", LONGER)
            _train(sixth, again, [*files, grammar], valid, arguments, fifth, longer)
        grammar = write(run, "grammar-all.tsv", made["all"])
        if arguments.seventh is None:
            _train(seventh, again, [*files, grammar], valid, arguments, sixth)
        field = write(run, "field-train.tsv", made["field-train"])
        _train(run, again, [*files, grammar, field], valid, arguments, seventh)
    # A model that is given stands for the runs before it.
    runs = [first, second, third, fourth, fifth, sixth, seventh, run]
    begun = 6 if arguments.seventh else 5 if arguments.sixth else 1 if arguments.second else 0
    minutes = sum(map(minutes_of, runs[begun:]))
    # Read before the new model is stored, whose place the seventh may have.
    held_out_scores = _of_the_sixth(seventh)
    place = store(run, "en-de")
    tests = {part: _tests(run, part, made[part]) for part in TESTS}
    test = _evaluate(place, parts["test"], run)
    for part, what in TESTS.items():
        test += _by_pattern(place, tests[part], what, run)
    if not held_out_scores:
        held_out_scores = [
            score
            for part, what in HELD_OUT.items()
            for score in _by_pattern(sixth, tests[part], what, run)
        ]
    test += held_out_scores
    held_out = [source for source, _ in one_reference_each(parts["valid"])]
    card = {
        "title": "English to German, everyday sentences",
        "summary": "Translates short everyday sentences from English to German",
        "task": "translation",
        "languages": ["en", "de"],
        "data": f"Tatoeba (2018), {len(parts['train']):,} sentence pairs, and their sources with "
        f"the translations of a first model; {len(made['all']):,} sentences of a grammar, in "
        "which one word decides another, and "
        f"{len(made['field-train']):,} about models and machines",
        "licence": "CC BY 2.0 FR",
        "attribution": "The contributors of tatoeba.org, in the selection of manythings.org/anki",
        "command": "python benchmarks/pretrained/en_de.py --data DIR",
        "scores": test,
        "limits": [
            "It knows the words of everyday sentences, and some about models and machines. A rare "
            "word becomes one that looks alike.",
            "It was trained on single short sentences: give it one at a time, none of them long.",
            "Names other than those of the data, above all Tom and Mary, may change: of 300 cities "
            "in test sentences it writes 47 % right, and 77 % as they are copied by default.",
            "It does not look beyond the sentence for what “it”, “you” or “bank” stand for. Within "
            "it, what it learned from the grammar's words holds for those words: a noun that it "
            "rarely saw may get a wrong gender and a wrong pronoun (see the scores).",
        ],
        "noted_head": noted_head(place, tests["known"]),
        "example_heads": [example_head(place, [each for each, _ in SENTENCES if " it " in each])],
        "examples": [{"text": text, "about": about} for text, about in SENTENCES],
        "sentences": random.Random(1).sample(held_out, MEASURED_ON),
    }
    # After the scores, which are those of the model itself. It writes "14 Katzen" for "144 cats",
    # and "Eridelberg" for "Heidelberg".
    stated = {"schema_version": 1, "languages": ["en", "de"]}
    stated |= {"numbers": "localize", "copy_unknown": True}
    (place / WRITING_FILE).write_text(json.dumps(stated, sort_keys=True) + "\n", encoding="utf-8")
    write_card(place, card, minutes=minutes)
    print(json.dumps({"model": "en-de", "scores": test}, ensure_ascii=False))


def _parse() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("--resume", action="store_true", help="go on with a run that was stopped")
    parser.add_argument("--first", type=Path, help="a model in the place of the first run")
    parser.add_argument("--second", type=Path, help="a model in the place of the second run")
    parser.add_argument("--sixth", type=Path, help="a model in the place of the sixth run")
    parser.add_argument("--seventh", type=Path, help="a model in the place of the seventh run")
    parser.add_argument(
        "--seen",
        type=Path,
        nargs="*",
        default=[],
        help="sentences that the tests omit, as those models had them from an earlier grammar",
    )
    parser.add_argument("--finish", action="store_true", help="publish a run as it is")
    return parse(parser)


def _of_the_sixth(model: Path) -> list[dict[str, Any]]:
    """Return the scores on the card of a model that are those of the sixth; none without a card."""
    if not (model / CARD_FILE).exists():
        return []
    scores = read_toml(model / CARD_FILE)["scores"]
    return [score for score in scores if "by the sixth of" in score["data"]]


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def _train(
    run: Path,
    settings: str,
    files: list[Path],
    valid: Path,
    arguments: argparse.Namespace,
    init: Path | None = None,
    more: Sequence[str] = (),
) -> None:
    words = ["train", str(run), *more]
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
    source = write(run, "test.en", list(references))
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


def _tests(run: Path, part: str, lines: list[str]) -> list[grammar_sentences.Test]:
    """Return the tests of a part, which are written beside the run."""
    return list(grammar_sentences.read_tests(write(run, f"{part}.tsv", lines)))


def _by_pattern(
    model: Path, tests: list[grammar_sentences.Test], what: str, run: Path
) -> list[dict[str, Any]]:
    """Share of the tests whose translation has the words that are wanted, by pattern."""
    sources = write(run, "tests.en", [source for source, *_ in tests])
    words = ["translate", str(model), "-i", str(sources), "--beam", "5", "--split", "lines"]
    said = heedful(words).splitlines()  # two sentences of a line are one test
    right: dict[str, list[bool]] = {}
    for translation, (_, target, wanted, pattern) in zip(said, tests, strict=True):
        fine = all(grammar_sentences.has(translation, each) for each in wanted or (target,))
        right.setdefault(pattern, []).append(fine)
    return [
        {
            "metric": f"right: {pattern}",
            "data": f"{len(found)} sentences of the grammar, {what}",
            "value": round(sum(found) / len(found), 3),
            "note": "Beam 5; the words that the sentence is about must be there",
        }
        for pattern, found in right.items()
    ]


if __name__ == "__main__":
    main()
