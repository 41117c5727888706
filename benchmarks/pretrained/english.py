"""Make `english` or `english-masked`, the English models at hand: one command each.

    python benchmarks/pretrained/english.py causal --data DIR
    python benchmarks/pretrained/english.py masked --data DIR

DIR holds tatoeba/en-de.tsv.gz and en-fr.tsv.gz, wikitext2/train.txt.gz and the other two files,
python_docs and tinyshakespeare (or set HEEDFUL_DATA). No sentence of the validation and test parts
is trained on. The test part is measured once, on the model as it is stored. The settings stand in
english.toml and english_masked.toml; the masked model learns from sentences first, and in two
further trainings from documents too (english_masked_second.toml). A run that was stopped goes on
with --resume, --first and --second take a model in the place of a masked run and those before it,
and --finish publishes what a run has. tree_heads.py then writes what heads do into the card.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import grammar_sentences  # noqa: E402
from driver import heedful, new_parser, parse  # noqa: E402 (scripts of the folder above)
from encoders import write  # noqa: E402
from english_documents import (  # noqa: E402
    WAYS,
    Documents,
    detokenized,
    english_documents,
    frequent_words,
    sentences_of,
    task,
)
from publish import minutes_of, store, write_card  # noqa: E402
from tatoeba import english_lines  # noqa: E402

from heedful.apps.evaluation.text_likelihood import text_likelihood  # noqa: E402

SHORT = "sentences of Tatoeba and WikiText-2"
ARTICLES = "articles of WikiText-2"
PARTS = ("train", "valid", "test")
PAIRS = ("en-de", "en-fr")
SHOTS = (0, 1, 2, 4, 8)
QUESTIONS = 200
POSITIONS = 513
"""Learned positions of the masked model: 512 tokens and [CLS]."""

FREQUENT = 40
"""Tokens that most sentences of the first training have, whose positions are well learned."""

FROM_GRAMMAR = 20_000
"""Sentences of the grammar that the masked model learns from."""

AROUND = 28
"""Words around a gap, beside the whole document."""

LONGEST = 30
"""Words of a sentence of WikiText-2 that is used: longer ones rarely fit a row."""

MEASURED_ON = 60
"""Held-out sentences in the card, on which heads are named."""

CAUSAL_EXAMPLES = (
    ("The cat sat on the", "What comes next?"),
    ("I love", "Two words, and many ways to go on"),
    ("The animal didn't cross the street because it was too", "tired, or wide?"),
    ("I saw the man with the", "Three words before a noun"),
    ("Yesterday I went to the bank and", "A bank for money"),
    ("red house -> house red\ngood old man -> man old good\nsmall child ->", "Words reversed"),
    ("3 May 1999 -> 1999-05-03\n12 June 2001 -> 2001-06-12\n7 March 1985 ->", "Dates rewritten"),
)
MASKED_EXAMPLES = (
    ("I went to the bank to borrow some [MASK].", "A bank for money"),
    ("The boat reached the north bank of the [MASK].", "A bank of a river"),
    ("The cat sat on the mat because it was [MASK].", "What is said of “it”?"),
    ("The animal didn't cross the street because it was too [MASK].", "tired, or wide?"),
    ("I [MASK] cats.", "One gap, several answers"),
)


def main() -> None:
    """Train, store, measure on the test part, write the card."""
    arguments = _parse()
    masked = arguments.kind == "masked"
    name = "english-masked" if masked else "english"
    run = arguments.run or Path("runs") / f"pretrained-{name}"
    run.parent.mkdir(parents=True, exist_ok=True)
    texts = english_lines([arguments.data / "tatoeba" / f"{p}.tsv.gz" for p in PAIRS])
    documents = english_documents(arguments.data, texts)
    if masked:
        for part in PARTS:
            path = arguments.data / "wikitext2" / f"{part}.txt.gz"
            texts[part] = [*texts[part], *wikitext_sentences(path)]
            del documents[part]["few-shot tasks"], documents[part]["sentences of Tatoeba"]
            documents[part][SHORT] = texts[part]
        documents["train"]["sentences of a grammar"] = _grammar_sentences()
    if masked:
        runs = _train_masked(run, texts, documents, arguments)
    else:
        runs = [run]
        _train(run, documents, "english.toml", arguments)
    place = store(run, name)
    if masked:
        scores = [
            score
            for kind in (SHORT, ARTICLES)
            for score in _masked_scores(place, documents["test"][kind], kind)
        ]
    else:
        scores = _causal_scores(place, documents["test"])
        scores += _few_shot_scores(place, frequent_words(texts["train"]))
    card = {
        **(_masked_facts if masked else _causal_facts)(documents["train"]),
        "languages": ["en"],
        "command": f"python benchmarks/pretrained/english.py {arguments.kind} --data DIR",
        "scores": scores,
        "sentences": random.Random(1).sample(texts["valid"], MEASURED_ON),
    }
    write_card(place, card, minutes=sum(map(minutes_of, runs)))
    print(json.dumps({"model": name, "scores": scores}, ensure_ascii=False))


def wikitext_sentences(path: Path) -> Iterator[str]:
    """Yield the sentences of a part of WikiText-2 that have no unknown word, as people write them.

    Args:
        path: a .txt.gz file of tokens with spaces between them.
    """
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            if line.startswith(" ="):  # a title
                continue
            for sentence in sentences_of(line):
                words = sentence.split()
                if 4 <= len(words) <= LONGEST and "<unk>" not in words and words[-1] in ".?!":
                    yield detokenized(sentence)


def _parse() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("kind", choices=("causal", "masked"))
    parser.add_argument("--first", type=Path, help="a model in the place of the masked one's first")
    parser.add_argument("--second", type=Path, help="a model in the place of its second")
    parser.add_argument("--resume", action="store_true", help="go on with a run that was stopped")
    parser.add_argument("--finish", action="store_true", help="publish a run as it is")
    return parse(parser)


def _grammar_sentences() -> list[str]:
    """Return English sentences of the grammar, a part of which are about two kinds of bank."""
    sources = (line.split("\t")[0] for line in grammar_sentences.parts()["train"])
    return random.Random(3).sample(list(dict.fromkeys(sources)), FROM_GRAMMAR)


def _lengthened(first: Path, place: Path) -> None:
    """Write a model with more positions, which begin as copies of those that it has.

    A model that learns 512 positions from nothing does not leave the frequencies of words in the
    time at hand; with copies of the table every place knows its neighbours from the start (as
    Beltagy and others 2020 do for Longformer).

    Args:
        first: directory of the model of sentences, or of its run.
        place: directory to write.
    """
    import torch

    from heedful.models.build import build_model
    from heedful.models.checkpoint import load_model, save_model
    from heedful.models.model_directory import find_model_directory
    from heedful.models.model_spec import parse_spec

    model, tokenizers = load_model(find_model_directory(first))
    plain = model.spec.plain()
    plain["embedding"]["positions"]["max_length"] = POSITIONS
    weights = model.state_dict()
    table = weights["input.positions.weight"]
    # The first position is that of [CLS] alone.
    rows = [0, *(1 + row % FREQUENT for row in range(POSITIONS - 1))]
    weights["input.positions.weight"] = table[torch.tensor(rows)]
    longer = build_model(parse_spec(plain, where=str(place)))
    longer.load_state_dict(weights)
    save_model(longer, tokenizers, place)


def _train_masked(
    run: Path,
    texts: dict[str, list[str]],
    documents: dict[str, Documents],
    arguments: argparse.Namespace,
) -> list[Path]:
    """Train on sentences, then twice on documents too; the three runs, or models in their place."""
    first = arguments.first or run.with_name(f"{run.name}-first")
    second = arguments.second or run.with_name(f"{run.name}-second")
    if arguments.second is None:
        if arguments.first is None:
            short = {part: {SHORT: lines} for part, lines in texts.items()}
            _train(first, short, "english_masked.toml", arguments)
        longer = run.with_name(f"{run.name}-longer")
        if not longer.exists():
            _lengthened(first, longer)
        _train(second, documents, "english_masked_second.toml", arguments, longer)
    _train(run, documents, "english_masked_second.toml", arguments, second, ("--seed", "2"))
    return [first, second, run]


def _train(
    run: Path,
    documents: dict[str, Documents],
    settings: str,
    arguments: argparse.Namespace,
    init: Path | None = None,
    more: Sequence[str] = (),
) -> None:
    if arguments.finish:
        return
    files = {}
    for part in ("train", "valid"):
        texts = [text for each in documents[part].values() for text in each]
        lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
        files[part] = write(run, f"{part}.jsonl", lines)
    words = ["train", str(run), *more]
    if arguments.resume and (run / "config.toml").exists():
        words.append("--resume")
    else:
        words += ["--config", str(HERE / settings)]
        words += [] if init is None else ["--init", str(init)]
        words += ["--train", str(files["train"]), "--valid", str(files["valid"])]
    heedful([*words, *arguments.extra])


def _causal_scores(place: Path, documents: Documents) -> list[dict[str, Any]]:
    """Bits per byte of the stored model on each kind of held-out documents, with end tokens."""
    import heedful as package

    model = package.load(place)
    scores = []
    for kind, texts in documents.items():
        if kind == "few-shot tasks":
            continue  # whose answers are counted
        found = text_likelihood(model, texts)
        scores.append(
            {
                "metric": "bits per byte",
                "data": f"{len(texts):,} held-out {kind}",
                "value": round(found.bits_per_byte, 3),
                "note": "Of the stored weights of 8 bits, each by itself; its end is predicted "
                f"and has no bytes. {found.bytes:,} bytes, {found.tokens:,} tokens.",
            }
        )
    return scores


def _few_shot_scores(place: Path, words: list[str]) -> list[dict[str, Any]]:
    """Share of right answers to few-shot tasks, by the number of examples in the prompt."""
    import heedful as package

    model = package.load(place)
    scores = []
    for kind in ("copy", "reverse", "dates"):
        draw = random.Random(5)
        asked = []
        for _ in range(QUESTIONS):
            source, target = draw.sample(WAYS, 2)
            asked.append([task(draw, kind, words, source, target) for _ in range(max(SHOTS) + 1)])
        for shots in SHOTS:
            prompts = [
                "\n".join([f"{q} -> {a}" for q, a in each[:shots]] + [f"{each[-1][0]} ->"])
                for each in asked
            ]
            found = model.generate(prompts, stop=("\n",), max_length=40)
            right = [f.text.strip() == each[-1][1] for f, each in zip(found, asked, strict=True)]
            scores.append(
                {
                    "metric": f"right answers: {kind}, {shots} examples",
                    "data": f"{QUESTIONS} questions that no training saw",
                    "value": round(sum(right) / len(right), 3),
                    "note": "Of the stored weights of 8 bits, greedy; in training such documents "
                    "are a part, with other words and days.",
                }
            )
    return scores


def _masked_scores(place: Path, texts: list[str], data: str) -> list[dict[str, Any]]:
    """How often the stored model names a hidden word of each text, first and among five."""
    import heedful as package

    encoder = package.load(place)
    tokenizer = encoder.tokenizer
    choose = random.Random(1)
    hidden, words = [], []
    for text in texts:
        spans = [
            match
            for match in re.finditer(r"(?<= )[A-Za-z]+(?=[ .,?!])", text)
            if len(tokenizer.encode(match[0])) == 1
        ]
        if spans and len(tokenizer.encode(text)) < POSITIONS - 3:  # with [CLS] and [SEP]
            match = choose.choice(spans)
            hidden.append(f"{text[: match.start()]}[MASK]{text[match.end() :]}")
            words.append(match[0])
    whole = f"{len(words):,} held-out {data}, a word of each hidden"
    scores = _gap_scores(encoder, hidden, words, whole)
    if max(map(len, texts)) > 2 * max(map(len, map(_around, hidden))):
        part = f"the same with the {AROUND} words around the gap alone"
        scores += _gap_scores(encoder, list(map(_around, hidden)), words, part)
    return scores


def _around(text: str) -> str:
    """Return the words around the gap of a text."""
    words = text.split()
    gap = next(number for number, word in enumerate(words) if "[MASK]" in word)
    return " ".join(words[max(0, gap - AROUND // 2) : gap + AROUND // 2])


def _gap_scores(
    encoder: Any, texts: list[str], words: list[str], data: str
) -> list[dict[str, Any]]:
    answers = [
        [each.token.strip("\u2581 ") for each in gaps[0]] for gaps in encoder.fill(texts, top=5)
    ]
    scores = []
    for name, among in (("first answer right", 1), ("right among five", 5)):
        right = [word in answer[:among] for word, answer in zip(words, answers, strict=True)]
        share = sum(right) / len(right)
        margin = 1.96 * math.sqrt(share * (1 - share) / len(right))
        scores.append(
            {
                "metric": name,
                "data": data,
                "value": round(share, 3),
                "interval": [round(share - margin, 3), round(share + margin, 3)],
                "note": "Of the stored weights of 8 bits, on words that are one piece.",
            }
        )
    return scores


def _causal_facts(documents: Documents) -> dict[str, Any]:
    counts = ", ".join(f"{len(texts):,} {kind}" for kind, texts in documents.items())
    return {
        "title": "English, word by word",
        "summary": "Goes on with English text, and follows examples of simple tasks",
        "task": "causal_lm",
        "data": f"{counts}; articles without sentences of unknown words, and tasks made by a "
        "program: words copied or reversed, and dates rewritten",
        "licence": "CC BY 2.0 FR, CC BY-SA 3.0 and PSF; Shakespeare is in the public domain",
        "attribution": "The contributors of tatoeba.org, in the selection of manythings.org/anki, "
        "of Wikipedia, in the selection of Stephen Merity and others (WikiText-2), and of Python's "
        "documentation",
        "limits": [
            "It knows words and their order, not facts: what it says of the world is made up.",
            "Instructions are not followed. One example shows it how dates are to be rewritten; "
            "whether words are to be copied or reversed it does not tell from examples.",
            "It reads 512 tokens, about 380 words.",
            "Text in the tone of the data comes first: names of Tatoeba, films and battles of "
            "Wikipedia, Python.",
        ],
        "examples": [{"text": text, "about": about} for text, about in CAUSAL_EXAMPLES],
    }


def _masked_facts(documents: Documents) -> dict[str, Any]:
    counts = ", ".join(f"{len(texts):,} {kind}" for kind, texts in documents.items())
    return {
        "title": "English with gaps",
        "summary": "Says what may stand in the gaps of an English sentence",
        "task": "masked_lm",
        "data": f"{counts}; articles without sentences of unknown words",
        "licence": "CC BY 2.0 FR, CC BY-SA 3.0 and PSF; Shakespeare is in the public domain",
        "attribution": "The contributors of tatoeba.org, in the selection of manythings.org/anki, "
        "of Wikipedia, in the selection of Stephen Merity and others (WikiText-2), and of Python's "
        "documentation",
        "limits": [
            "A gap is one piece of its vocabulary, so a rare word never fills it.",
            "It reads 512 tokens, about 380 words, and makes little of those that are far away: "
            "see the scores with a whole document and with the words around a gap alone.",
            "What it says is likely in such texts, which is not the same as true.",
        ],
        "examples": [{"text": text, "about": about} for text, about in MASKED_EXAMPLES],
    }


if __name__ == "__main__":
    main()
