"""Examples of the benchmark of text to text."""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import text_pairs as pairs

FUNCTION = "def f(self, x):\n    if x:\n        return g(x + 1, 'a b')\n    self.y = [x]"


@given(seed=st.integers(0, 10_000))
def test_a_function_with_its_gap_filled_is_the_function(seed: int) -> None:
    example = pairs.with_gap(FUNCTION, random.Random(seed))
    gapped = example.references[1]
    assert gapped.replace(f" {pairs.GAP} ", example.target) == FUNCTION
    assert pairs.parses(example.target, gapped)
    assert not pairs.parses("return return", gapped)
    assert "\n" not in example.source
    assert example.source.count(pairs.GAP) == 1


def test_lines_of_code_become_signs() -> None:
    assert pairs.in_a_line(FUNCTION).split(" ¶ ")[2] == "» » return g(x + 1, 'a b')"


def test_entities_are_written_with_their_kinds(tmp_path: Path) -> None:
    text = "Ada\tB-person\nLovelace\tI-person\nin\tO\nRome\tB-location\n\t\nno\tO\n"
    folder = tmp_path / "wnut17"
    folder.mkdir()
    for name in ("train", "dev"):
        (folder / f"{name}.conll.gz").write_bytes(gzip.compress(text.encode()))
    first, second = pairs.entities(tmp_path)["test"]
    assert first.target == "person: Ada Lovelace ; location: Rome"
    assert first.source == "Ada Lovelace in Rome"
    assert second.target == "none"


def test_no_article_is_in_two_parts(tmp_path: Path) -> None:
    (tmp_path / "xquad").mkdir()
    for language in ("en", "de"):
        data = [
            {"title": f"{n}", "paragraphs": [{"context": f"{language} {n}", "qas": []}] * 5}
            for n in range(48)
        ]
        text = json.dumps({"data": data}).encode()
        (tmp_path / "xquad" / f"xquad.{language}.json.gz").write_bytes(gzip.compress(text))
    english, german = (pairs.squad(tmp_path, language) for language in ("en", "de"))
    titles = {part: [each["title"] for each in articles] for part, articles in english.items()}
    assert titles == {part: [a["title"] for a in articles] for part, articles in german.items()}
    assert len({title for each in titles.values() for title in each}) == 48
    assert {part: 5 * len(each) for part, each in titles.items()} == {
        "test": 40,
        "valid": 15,
        "train": 185,
    }
