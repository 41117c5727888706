"""A toy language with soft terms, through the real command line: terms never seen are used."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

import heedful
from heedful.apps.serve.metrics import Metrics
from heedful.apps.serve.scheduler import Scheduler
from heedful.apps.serve.served_models import ServedModels, parse_model
from heedful.apps.serve.server_settings import Limits, ModelOptions
from heedful.apps.serve.service import Service
from heedful.cli.main import main
from heedful.errors import ModelError
from heedful.pipelines.glossary import Glossary, Term
from heedful.pipelines.translation import TranslationPipeline
from heedful.search.lexical_shortlist import make_shortlist
from heedful.search.search_settings import SearchSettings
from heedful.text.inline_terms import END, SEPARATOR
from tests.learn.toy_settings import WORD_SETTINGS, WORDS

SETTINGS = WORD_SETTINGS | {
    "tokenizer.kind": "characters",
    "data.batch-tokens": 768,
    "soft-terms-share": 0.6,
    "max-steps": 500,
}
Pairs = list[tuple[str, str]]


def draw_terms(draw: random.Random, count: int) -> Pairs:
    """Names of the source, and of the target: nothing in the one tells the other."""
    names = (["".join(draw.choices("abcdefgh", k=4)) for _ in range(count)] for _ in range(2))
    return list(zip(*names, strict=True))


def draw_sentence(draw: random.Random, terms: Pairs) -> tuple[str, str]:
    """Words and a term; the translation has the same order."""
    pairs = [(word, WORDS[word]) for word in draw.choices(sorted(WORDS), k=draw.randint(1, 2))]
    pairs.insert(draw.randint(0, len(pairs)), draw.choice(terms))
    source, target = zip(*pairs, strict=True)
    return " ".join(source), " ".join(target)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run trained with soft terms, and texts and a glossary with terms it has never seen."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("terms")
    draw = random.Random(5)
    terms = draw_terms(draw, 800)
    known = {name for pair in terms for name in pair}
    fresh = [pair for pair in draw_terms(draw, 150) if not known & set(pair)]
    for name, count, own in (("train", 4000, terms), ("test", 100, fresh)):
        pairs = [draw_sentence(draw, own) for _ in range(count)]
        for side, lines in zip(("src", "tgt"), zip(*pairs, strict=True), strict=True):
            (folder / f"{name}.{side}").write_text("".join(f"{line}\n" for line in lines))
        rows = "".join(f"{source}\t{target}\n" for source, target in dict(own).items())
        (folder / f"{name}.tsv").write_text(rows)
    assert train(folder, "run", "--soft-terms", str(folder / "train.tsv")) == 0
    return folder


def train(folder: Path, run: str, *more: str) -> int:
    flags = [word for key, value in SETTINGS.items() for word in (f"--{key}", str(value))]
    corpus = [str(folder / "train.src"), str(folder / "train.tgt")]
    return main(["train", str(folder / run), "--train", *corpus, *flags, *more])


def held_out(folder: Path) -> tuple[list[str], list[str]]:
    """Sources and targets with terms that were never trained."""
    source, target = ((folder / f"test.{side}").read_text().splitlines() for side in ("src", "tgt"))
    return source, target


def share_right(found: Sequence[str], expected: Sequence[str]) -> float:
    return sum(a == b for a, b in zip(found, expected, strict=True)) / len(expected)


def test_terms_never_seen_are_used(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = folder / "output"
    _, target = held_out(folder)
    command = ["translate", str(folder / "run"), "-i", str(folder / "test.src"), "-o", str(output)]
    soft = ["--glossary", str(folder / "test.tsv"), "--glossary-mode", "soft"]
    rights = []
    for more in (soft, []):
        assert main([*command, *more]) == 0
        rights.append(share_right(output.read_text("utf-8").splitlines(), target))
    assert rights[0] >= 0.9
    assert rights[1] <= 0.1

    capsys.readouterr()
    assert main(["translate", "en-de", "-i", str(folder / "test.src"), *soft]) != 0
    message = capsys.readouterr().err
    assert "has not learned soft terms" in message
    assert "--soft-terms" in message


def test_documents_have_soft_terms(folder: Path) -> None:
    source, target = held_out(folder)
    (folder / "page.txt").write_text("\n\n".join(source[:20]) + "\n")
    files = [str(folder / "page.txt"), str(folder / "page.out")]
    soft = ["--glossary", str(folder / "test.tsv"), "--glossary-mode", "soft"]
    assert main(["translate-file", *files, "--model", str(folder / "run"), *soft]) == 0
    found = (folder / "page.out").read_text().splitlines()[::2]
    assert share_right(found, target[:20]) >= 0.8


def test_alignments_are_of_the_text_as_it_was_given(folder: Path) -> None:
    translator = heedful.load(folder / "run", device="cpu")
    glossary = Glossary.read(folder / "test.tsv", soft=True)
    source, target = held_out(folder)
    plain = translator.translate(source, glossary=glossary)
    found = translator.translate(source, glossary=glossary, alignment=True)
    assert [str(each) for each in found] == plain
    of_terms = 0
    for text, result, expected in zip(source, found, target, strict=True):
        assert result.required == 0
        assert result.alignment.source_words == tuple(text.split())
        assert all(sum(row) <= 1 + 1e-6 for row in result.alignment.matrix)
        if result == expected:
            (term,) = glossary.inline(text)
            place = text[: term.start].count(" ")
            of_terms += (place, place) in {(a, b) for a, b, _ in result.alignment.links}
    assert of_terms >= 0.9 * len(source)


@pytest.mark.parametrize(
    "options", [{"beam": 1}, {"n_best": 2}, {"alternatives": 2}, {"sampling": True, "top_k": 1}]
)
def test_every_search_takes_soft_terms(folder: Path, options: dict[str, Any]) -> None:
    translator = heedful.load(folder / "run", device="cpu")
    glossary = Glossary.read(folder / "test.tsv", soft=True)
    source, target = (side[:30] for side in held_out(folder))
    found = translator.translate(source, glossary=glossary, **options)
    assert share_right(found, target) >= 0.8
    (alone,) = translator.translate(source[:1], glossary=glossary, **options)
    assert alone == found[0]
    assert not any({SEPARATOR, END} & set(text) for each in found for text in each.n_best)


def test_reduced_engines_take_soft_terms(folder: Path) -> None:
    glossary = Glossary.read(folder / "test.tsv", soft=True)
    source, target = (side[:30] for side in held_out(folder))
    small = heedful.load(folder / "run", device="cpu", precision="int8")
    assert share_right(small.translate(source, glossary=glossary), target) >= 0.8
    translator = heedful.load(folder / "run", device="cpu")
    files = [folder / f"one.{side}" for side in ("src", "tgt")]
    for file in files:  # the shortlist has no letters of terms
        file.write_text("nopqrstuvwxy\n" * 3)
    learned = make_shortlist(*files, translator.tokenizers, per_token=1, frequent=1)
    pipeline = TranslationPipeline(
        translator.models, translator.tokenizers, shortlist=learned.shortlist
    )
    terms = glossary.inline(source[0])
    (result,) = pipeline.translate(source[:1], glossary=glossary)
    assert terms[0].target in result.replace(" ", "")


def test_the_longest_term_counts_and_marks_in_a_text_are_text(folder: Path) -> None:
    translator = heedful.load(folder / "run", device="cpu")
    glossary = Glossary(
        [Term("ab", ("hhhh",)), Term("ab cd", ("gggg",)), Term("ef", ("fehg",))], is_soft=True
    )
    (result,) = translator.translate(["Ab cd ij"], glossary=glossary)
    assert "gggg" in result
    assert "hhhh" not in result
    texts = [f"kl {SEPARATOR}gggg{END} ij", "", "ij kl\nef kl"]
    plain = translator.translate(
        [text.replace(SEPARATOR, "\ufffd").replace(END, "\ufffd") for text in texts]
    )
    assert translator.translate(texts) == plain
    assert len(translator.translate(texts, glossary=glossary)[2].splitlines()) == 2


def test_a_server_has_soft_terms(folder: Path) -> None:
    path = folder / "run" / "model"
    models = ServedModels(
        [parse_model(f"aa-bb={path}")],
        ModelOptions(glossaries={"aa-bb": folder / "test.tsv"}, soft_terms=True),
    )
    scheduler = Scheduler(threads=1, positions=4096, most_waiting=100, observe=Metrics().observe)
    service = Service(models, scheduler, Limits(), SearchSettings())
    source, target = (side[:20] for side in held_out(folder))

    async def ask() -> list[str]:
        return [each.text for each in await service.translate(source, ["aa-bb"])]

    try:
        with ThreadPoolExecutor(1) as threads:  # a browser's driver may keep a loop in this one
            answers = threads.submit(anyio.run, ask).result()
        assert share_right(answers, target) >= 0.8
    finally:
        scheduler.stop()
    english = ServedModels(
        [parse_model("en-de")],
        ModelOptions(glossaries={"en-de": folder / "test.tsv"}, soft_terms=True),
    )
    with pytest.raises(ModelError, match="has not learned soft terms"):
        english.load_all()
