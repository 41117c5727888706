"""Tags in HTML around nouns whose German is known: how often they end up around it.

    python benchmarks/markup.py --data DIR [--model en-de] [--sentences 1000]

DIR holds multi30k/raw/test_2016_flickr.en.gz (or set HEEDFUL_DATA). Each sentence in which one of
the nouns below stands once is translated with <b> around that noun. Where the translation has the
German noun exactly once, the place of the tag can be judged: it is right if the tag holds the word
that contains the noun and no other word. "order" is the same without alignment, as in documents
that go over a pivot. Every output must hold the tag exactly once and be, without it, the
translation of the sentence without tags. Prints a table and one JSON line, which also goes to
RESULTS/markup/result.json.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inside import read_lines
from report import say, write_result

import heedful
from heedful.apps.documents.document_settings import DocumentSettings
from heedful.apps.documents.formats import translate_document
from heedful.apps.documents.line_up import TranslatedSentence
from heedful.pipelines.translation import TranslationPipeline

NOUNS = {
    "man": "Mann", "woman": "Frau", "dog": "Hund", "boy": "Junge", "girl": "Mädchen",
    "street": "Straße", "snow": "Schnee", "water": "Wasser", "ball": "Ball", "beach": "Strand",
    "car": "Auto", "horse": "Pferd", "hat": "Hut", "tree": "Baum", "table": "Tisch", "book": "Buch",
    "house": "Haus", "door": "Tür", "cat": "Katze", "children": "Kinder", "hand": "Hand",
    "food": "Essen", "city": "Stadt", "window": "Fenster", "wall": "Mauer", "child": "Kind",
}  # fmt: skip


_WHOLE = DocumentSettings(split="passages")
"""Each line of the corpus is one sentence."""


class Translator:
    """A pipeline, as documents call it.

    Args:
        pipeline: translates sentences.
        alignment: give alignments where they are asked for.
    """

    def __init__(self, pipeline: TranslationPipeline, *, alignment: bool) -> None:
        self.pipeline = pipeline
        self.alignment = alignment

    def translate(self, texts: Sequence[str], *, alignment: bool) -> list[TranslatedSentence]:
        found = self.pipeline.translate(texts, alignment=alignment and self.alignment)
        return [TranslatedSentence(str(each), each.alignment) for each in found]


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Count tags at their word, with alignments and without."""
    corpus = Path(arguments.data) / "multi30k" / "raw" / "test_2016_flickr.en.gz"
    pipeline = heedful.load(arguments.model, device="cpu", numbers="model")
    cases: list[tuple[str, str]] = []  # a sentence with a tag, and the German noun
    for line in read_lines(corpus)[: arguments.sentences]:
        for english, german in NOUNS.items():
            if len(re.findall(rf"\b{english}\b", line)) == 1 and not re.search("[<&>]", line):
                cases.append((re.sub(rf"\b({english})\b", r"<b>\1</b>", line), german))
    found: dict[str, Any] = {"tags": len(cases)}
    page = "".join(f"<p>{sentence}</p>\n" for sentence, _ in cases)
    bare = re.sub("</?b>", "", page)
    translate = Translator(pipeline, alignment=False)
    expected = translate_document(bare.encode(), translate, format="html", settings=_WHOLE).decode()
    for name, alignment in (("alignment", True), ("order", False)):
        translator = Translator(pipeline, alignment=alignment)
        written = translate_document(
            page.encode(), translator, format="html", settings=_WHOLE
        ).decode()
        assert re.sub("</?b>", "", written) == expected, "a tag changed a translation"
        lines = written.splitlines()
        assert all(line.count("<b>") == line.count("</b>") == 1 for line in lines)
        judged = [
            (line, german)
            for line, (_, german) in zip(lines, cases, strict=True)
            if re.sub("</?b>", "", line).casefold().count(german.casefold()) == 1
        ]
        right = sum(_is_right(line, german) for line, german in judged)
        found["judged"] = len(judged)
        found[name] = {"right": right, "percent": round(100 * right / len(judged), 1)}
    return found


def _is_right(line: str, german: str) -> bool:
    inside = re.search("<b>(.*)</b>", line)
    assert inside is not None
    return german.casefold() in inside[1].casefold() and len(inside[1].split()) == 1


def main() -> None:
    """Measure, and write down what was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="en-de")
    parser.add_argument("--data", default=os.environ.get("HEEDFUL_DATA"))
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--results", type=Path, default=Path(__file__).resolve().parent / "results")
    arguments = parser.parse_args()
    if arguments.data is None:
        say("skipped: give the corpus by --data or HEEDFUL_DATA")
        return
    found = measure(arguments)
    for name in ("alignment", "order"):
        one = found[name]
        print(
            f"{name:<12}{one['right']:>6} of {found['judged']}: {one['percent']} %", file=sys.stderr
        )
    command = "python benchmarks/markup.py --data DIR"
    command += f" --model {arguments.model} --sentences {arguments.sentences}"
    write_result(arguments.results, "markup", command, found)


if __name__ == "__main__":
    main()
