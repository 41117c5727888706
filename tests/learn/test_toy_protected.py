"""A toy language with placeholders, through the real command line: names never seen are kept."""

from __future__ import annotations

import json
import random
import string
from collections import Counter
from pathlib import Path

import pytest
import torch

import heedful
from heedful.cli.main import main
from heedful.errors import ConfigError
from heedful.text.protected_spans import reserved_marks
from tests.learn.toy_settings import WORD_SETTINGS, WORDS

SETTINGS = WORD_SETTINGS | {
    "tokenizer.kind": "bpe",
    "tokenizer.vocabulary-size": 120,
    "data.batch-tokens": 512,
    "max-steps": 350,
}


def draw_sentence(draw: random.Random, letters: str) -> tuple[str, str]:
    """Words and placeholders; in the translation the order is reversed."""
    words = draw.choices(sorted(WORDS), k=draw.randint(1, 3))
    names = [
        "".join(draw.choices(letters, k=draw.randint(3, 6))) for _ in range(draw.randint(1, 2))
    ]
    spans = [draw.choice(["{%s}", "%%(%s)s"]) % name for name in names]
    parts = [*words, *spans]
    draw.shuffle(parts)
    return " ".join(parts), " ".join(WORDS.get(part, part) for part in reversed(parts))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run and held-out texts with names of other letters."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("protected")
    draw = random.Random(5)
    for name, count, letters in (("train", 3000, "abcdefghijkl"), ("test", 100, "QRSTUVWXYZ")):
        pairs = [draw_sentence(draw, letters) for _ in range(count)]
        for side, lines in zip(("src", "tgt"), zip(*pairs, strict=True), strict=True):
            (folder / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines))
    flags = [word for key, value in SETTINGS.items() for word in (f"--{key}", str(value))]
    corpus = [str(folder / "train.src"), str(folder / "train.tgt")]
    run = str(folder / "run")
    assert main(["train", run, "--train", *corpus, "--protect", "placeholders,urls", *flags]) == 0
    return folder


def test_placeholders_with_names_never_seen_are_kept(folder: Path) -> None:
    output, report = folder / "output", folder / "report.json"
    source, target = ((folder / f"test.{side}").read_text().splitlines() for side in ("src", "tgt"))
    command = ["translate", str(folder / "run"), "-i", str(folder / "test.src")]
    assert main([*command, "-o", str(output), "--report", str(report)]) == 0
    lines = output.read_text("utf-8").splitlines()
    for text, line in zip(source, lines, strict=True):
        spans = [part for part in text.split() if part[0] in "{%"]
        assert Counter(part for part in line.split() if part[0] in "{%") == Counter(spans)
    counts = json.loads(report.read_text())
    assert counts["missing"] == 0
    assert counts["required"] == sum(part[0] in "{%" for text in source for part in text.split())
    right = sum(a == b for a, b in zip(lines, target, strict=True)) / len(lines)
    assert right >= 0.9

    assert main([*command, "-o", str(output), "--protect", "none"]) == 0
    lines = output.read_text("utf-8").splitlines()
    assert not any(set(line) & set(string.ascii_uppercase) for line in lines)


def test_the_pipeline_keeps_parts_in_any_text(folder: Path) -> None:
    translator = heedful.load(folder / "run", device="cpu")
    texts = [
        "ab {ONE}\ncd {TWO} {ONE} {ONE}",
        " ".join(f"{{N{i}}} ab" for i in range(20)),
        "\U000f0003 ab",  # a reserved character is text, too
        "ab http://example.org/{x}?q=1.",
        "ab cd",
        "",
    ]
    found = translator.translate(texts)
    for text, result in zip(texts, found, strict=True):
        _, parts = translator.tokenizers.protection.protect(text)
        assert len(result.splitlines()) == len(text.splitlines())
        assert result.required == len(parts)
        assert result.missing == ()
        for line, translation in zip(text.splitlines(), result.splitlines(), strict=True):
            for part in translator.tokenizers.protection.protect(line)[1]:
                assert translation.count(part) >= line.count(part)
    several = translator.translate(["ab cd", "gh ef"], alternatives=3)
    assert all(len(set(result.n_best)) == 3 for result in several)
    assert not any(reserved_marks(text) for result in several for text in result.n_best)
    with pytest.raises(ConfigError, match="required phrases"):
        translator.translate(texts, alternatives=3)
    (alone,) = translator.translate(texts[:1])
    assert alone == found[0]
    quantized = heedful.load(folder / "run", device="cpu", precision="int8").translate(texts)
    assert all(not result.missing for result in quantized)


def test_a_translation_without_room_names_the_part(folder: Path) -> None:
    translator = heedful.load(folder / "run", device="cpu")
    (result,) = translator.translate(["ab {ONE} {TWO} cd"], max_length=1, beam=2)
    assert set(result.missing) & {"{ONE}", "{TWO}"}
