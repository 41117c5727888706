"""Make `english` or `english-masked`, the English models at hand: one command each.

    python benchmarks/pretrained/english.py causal --data DIR
    python benchmarks/pretrained/english.py masked --data DIR

DIR holds tatoeba/en-de.tsv.gz and en-fr.tsv.gz, for the masked model wikitext2/train.txt.gz and the
other two files as well (or set HEEDFUL_DATA). No sentence of the validation and test parts is
trained on. The test part is measured once, on the model as it is stored. The settings stand in
english.toml and english_masked.toml. A run that was stopped goes on with --resume, and --finish
publishes what it has.
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
from publish import store, write_card  # noqa: E402
from tatoeba import english_lines  # noqa: E402

PARTS = ("train", "valid", "test")
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
    texts = _texts(arguments.data, masked=masked)
    if not arguments.finish:
        _train(run, texts, arguments)
    place = store(run, name)
    scores = (_masked_scores if masked else _causal_scores)(place, texts["test"])
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    seconds = max(json.loads(line).get("seconds", 0) for line in lines)
    card = {
        **(_masked_facts(texts) if masked else _causal_facts(texts)),
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
            for sentence in re.split(r"(?<= [.?!]) (?=[A-Z\"])", line.strip()):
                words = sentence.split()
                if 4 <= len(words) <= LONGEST and "<unk>" not in words and words[-1] in ".?!":
                    yield _detokenize(sentence)


def _detokenize(sentence: str) -> str:
    text = re.sub(r" @([-,.])@ ", r"\1", sentence)
    text = re.sub(r'" ([^"]*?) "', r'"\1"', text).replace(' "', ' "')
    text = re.sub(r" ([,.;:?!%)\]]|'(?:s|re|ve|ll|d|m|t)\b|n't\b)", r"\1", text)
    return re.sub(r"([(\[$£]) ", r"\1", text)


def _parse() -> argparse.Namespace:
    parser = new_parser(__doc__)
    parser.add_argument("kind", choices=("causal", "masked"))
    parser.add_argument("--resume", action="store_true", help="go on with a run that was stopped")
    parser.add_argument("--finish", action="store_true", help="publish a run as it is")
    return parse(parser)


def _texts(data: Path, *, masked: bool) -> dict[str, list[str]]:
    """Sentences by part: everyday ones, and for the masked model those of WikiText-2."""
    texts = english_lines([data / "tatoeba" / f"{pair}.tsv.gz" for pair in ("en-de", "en-fr")])
    if masked:
        for part in PARTS:
            texts[part] += wikitext_sentences(data / "wikitext2" / f"{part}.txt.gz")
    return texts


def _train(run: Path, texts: dict[str, list[str]], arguments: argparse.Namespace) -> None:
    files = {part: run.with_suffix(f".{part}.txt") for part in ("train", "valid")}
    for part, file in files.items():
        file.write_text("".join(f"{line}\n" for line in texts[part]), encoding="utf-8")
    words = ["train", str(run)]
    if arguments.resume and (run / "config.toml").exists():
        words.append("--resume")
    else:
        settings = "english_masked.toml" if arguments.kind == "masked" else "english.toml"
        words += ["--config", str(HERE / settings)]
        words += ["--train", str(files["train"]), "--valid", str(files["valid"])]
    heedful([*words, *arguments.extra])


def _causal_scores(place: Path, sentences: list[str]) -> list[dict[str, Any]]:
    """Perplexity and bits per byte of the stored model on the test part, end tokens counted."""
    import torch

    from heedful import inspect
    from heedful.inspect.readings import batches, tensors

    subject = inspect.load(place)
    readings = inspect.read_all(subject, sentences)
    nll, tokens = 0.0, 0
    with torch.inference_mode():
        for numbers in batches(readings):
            ids, positions = tensors(subject, [readings[number] for number in numbers])
            model: Any = subject.model
            log_probs = model.logits(model(ids, positions)).log_softmax(-1)
            ends = torch.full_like(ids[:, :1], subject.source.eos)
            after = torch.cat([ids[:, 1:], ends], 1)
            last = (positions == positions.amax(1, keepdim=True)) & (positions >= 0)
            after = torch.where(last, subject.source.eos, after)
            found = -log_probs.gather(2, after[..., None])[..., 0][positions >= 0]
            nll, tokens = nll + float(found.double().sum()), tokens + len(found)
    size = sum(len(sentence.encode()) + 1 for sentence in sentences)
    data = f"{len(sentences):,} held-out sentences of Tatoeba"
    note = "Of the stored weights of 8 bits, each sentence by itself with its end."
    return [
        {"metric": "perplexity", "data": data, "value": round(math.exp(nll / tokens), 1)}
        | {"note": f"{note} By piece of its vocabulary, {tokens:,} of them."},
        {"metric": "bits per byte", "data": data, "value": round(nll / math.log(2) / size, 3)}
        | {"note": f"{note} {size:,} bytes, one for each end."},
    ]


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


def _causal_facts(texts: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "title": "Everyday English, word by word",
        "summary": "Goes on with short everyday sentences",
        "task": "causal_lm",
        "data": f"Tatoeba (2018 and 2019), {len(texts['train']):,} English sentences",
        "licence": "CC BY 2.0 FR",
        "attribution": "The contributors of tatoeba.org, in the selection of manythings.org/anki",
        "limits": [
            "It writes one short sentence, as its data are, and knows nothing of facts.",
            "Of names it knows Tom and Mary best.",
            "Its sentences follow grammar more often than sense.",
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
