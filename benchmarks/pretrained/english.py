"""Make `english` or `english-masked`, the English models at hand: one command each.

    python benchmarks/pretrained/english.py causal --data DIR
    python benchmarks/pretrained/english.py masked --data DIR

DIR holds tatoeba/en-de.tsv.gz and en-fr.tsv.gz, wikitext2/train.txt.gz and the other two files, and
for the causal model python_docs and tinyshakespeare (or set HEEDFUL_DATA). No sentence of the
validation and test parts is trained on. The test part is measured once, on the model as it is
stored. The settings stand in english.toml and english_masked.toml. A run that was stopped goes on
with --resume, and --finish publishes what it has. tree_heads.py then writes what heads do into the
card.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from driver import heedful, new_parser, parse  # noqa: E402 (scripts of the folder above)
from english_documents import (  # noqa: E402
    WAYS,
    Documents,
    detokenized,
    english_documents,
    frequent_words,
    sentences_of,
    task,
)
from publish import store, write_card  # noqa: E402
from tatoeba import english_lines  # noqa: E402

from heedful.apps.evaluation.text_likelihood import text_likelihood  # noqa: E402

PARTS = ("train", "valid", "test")
PAIRS = ("en-de", "en-fr")
SHOTS = (0, 1, 2, 4, 8)
QUESTIONS = 200
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
    if masked:
        for part in PARTS:
            texts[part] += wikitext_sentences(arguments.data / "wikitext2" / f"{part}.txt.gz")
        documents = {part: {"sentences": lines} for part, lines in texts.items()}
    else:
        documents = english_documents(arguments.data, texts)
    if not arguments.finish:
        _train(run, documents, arguments)
    place = store(run, name)
    if masked:
        scores = _masked_scores(place, texts["test"])
    else:
        scores = _causal_scores(place, documents["test"])
        scores += _few_shot_scores(place, frequent_words(texts["train"]))
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    seconds = max(json.loads(line).get("seconds", 0) for line in lines)
    card = {
        **(_masked_facts(texts) if masked else _causal_facts(documents["train"])),
        "languages": ["en"],
        "command": f"python benchmarks/pretrained/english.py {arguments.kind} --data DIR",
        "scores": scores,
        "sentences": random.Random(1).sample(texts["valid"], MEASURED_ON),
    }
    write_card(place, card, minutes=seconds / 60)
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
    parser.add_argument("--resume", action="store_true", help="go on with a run that was stopped")
    parser.add_argument("--finish", action="store_true", help="publish a run as it is")
    return parse(parser)


def _train(run: Path, documents: dict[str, Documents], arguments: argparse.Namespace) -> None:
    files = {part: run.with_suffix(f".{part}.jsonl") for part in ("train", "valid")}
    for part, file in files.items():
        texts = [text for each in documents[part].values() for text in each]
        lines = (json.dumps({"text": text}, ensure_ascii=False) for text in texts)
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    words = ["train", str(run)]
    if arguments.resume and (run / "config.toml").exists():
        words.append("--resume")
    else:
        settings = "english_masked.toml" if arguments.kind == "masked" else "english.toml"
        words += ["--config", str(HERE / settings)]
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


def _masked_scores(place: Path, sentences: list[str]) -> list[dict[str, Any]]:
    """How often the stored model names a hidden word of the test part, first and among five."""
    import heedful as package

    encoder = package.load(place)
    tokenizer = encoder.tokenizer
    choose = random.Random(1)
    texts, words = [], []
    for sentence in sentences:
        spans = [
            match
            for match in re.finditer(r"(?<= )[A-Za-z]+(?=[ .,?!])", sentence)
            if len(tokenizer.encode(match[0])) == 1
        ]
        if spans:
            match = choose.choice(spans)
            texts.append(f"{sentence[: match.start()]}[MASK]{sentence[match.end() :]}")
            words.append(match[0])
    answers = [
        [each.token.strip("\u2581 ") for each in gaps[0]] for gaps in encoder.fill(texts, top=5)
    ]
    data = f"{len(words):,} held-out sentences of Tatoeba and WikiText-2, a word of each hidden"
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


def _masked_facts(texts: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "title": "English with gaps",
        "summary": "Says what may stand in the gaps of an English sentence",
        "task": "masked_lm",
        "data": f"Tatoeba (2018 and 2019) and the sentences of WikiText-2 without an unknown word, "
        f"{len(texts['train']):,} in all",
        "licence": "CC BY 2.0 FR and CC BY-SA 3.0",
        "attribution": "The contributors of tatoeba.org, in the selection of manythings.org/anki, "
        "and of Wikipedia, in the selection of Stephen Merity and others (WikiText-2)",
        "limits": [
            "A gap is one piece of its vocabulary, so a rare word never fills it.",
            "It reads single sentences of up to thirty words.",
            "What it says is likely in such texts, which is not the same as true.",
        ],
        "examples": [{"text": text, "about": about} for text, about in MASKED_EXAMPLES],
    }


if __name__ == "__main__":
    main()
