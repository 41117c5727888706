"""The page of a check: complete, well formed, and harmless whatever the corpus holds."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from heedful.apps.cleaning.check_page import page_of
from heedful.apps.cleaning.check_report import check_corpus, prepare
from heedful.apps.cleaning.cleaning_settings import CleaningSettings
from heedful.cli.main import main
from heedful.data.corpus_spec import CorpusSpec

VOID = {"meta", "br"}


class Reader(HTMLParser):
    """Reads tables and tags; fails where tags do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: set[str] = set()
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open:
            self.cells[-1] += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def test_the_page_shows_texts_as_they_are_and_runs_nothing(tsv) -> None:
    pairs = [
        ("<script>alert(1)</script> & more", '"><img src=x onerror=alert(1)>'),
        ("left to right", "a\x01b\u202ec"),
        ("=1+1", "= 2"),
        ("y" * 600, "x" * 600),
    ]
    spec = CorpusSpec(file=str(tsv(pairs)))
    checked = check_corpus(*prepare(spec, CleaningSettings(off=("language",))))
    page = page_of(checked)
    reader = read(page)
    assert not reader.seen & {"script", "img", "link", "iframe"}
    assert not {name for name in reader.attributes if name.startswith("on")} | (
        reader.attributes & {"src", "href"}
    )
    assert "default-src 'none'" in page
    assert "http:" not in page
    assert "https:" not in page
    assert pairs[0][0] in reader.cells
    assert pairs[0][1] in reader.cells
    assert "a0001b202Ec" in reader.cells
    assert "=1+1" in reader.cells
    assert "x" * 500 in reader.cells
    assert "x" * 501 not in page
    assert "y" * 500 in reader.cells
    assert "y" * 501 not in page
    assert "\u202e" not in page


def test_counts_and_every_rule_are_there(tmp_path: Path) -> None:
    path = tmp_path / "p.tsv"
    path.write_bytes(b"a\tb\na\tb\na\tc\nno pair\nbad \xff\tx\nIt is 5.\tEs ist 6.\n" * 2)
    assert (
        main(["data", "check", str(path), "--out", str(tmp_path / "out"), "--off", "numbers"]) == 0
    )
    report = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    page = (tmp_path / "out" / "page.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", " ", page)
    assert (report["pairs"], report["kept"], report["removed"]) == (12, 3, 9)
    assert "12 pairs: 3 would stay, 9 (75.00%) would go." in text
    for rule in report["rules"]:
        row = (
            rf"{rule['rule']}\s+{re.escape(rule['about'])}\s+{rule['pairs']}\s+{rule['removed']}\s"
        )
        assert re.search(row, text), rule
    assert "numbers" in report["not_applied"]
    assert "There are 1 fields instead of source, tab, target" in text
    assert "The worst 12 pairs" in text
    cells = read(page).cells
    assert cells[cells.index("different words") + 1] == "4"


def test_a_folder_that_is_there_is_used_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.tsv").write_text("a\tb\n", encoding="utf-8")
    words = ["data", "check", str(tmp_path / "p.tsv"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    (tmp_path / "out" / "page.html").write_text("old", encoding="utf-8")
    assert main(words) == 0
    assert "<main>" in (tmp_path / "out" / "page.html").read_text(encoding="utf-8")
    (tmp_path / "file").write_text("", encoding="utf-8")
    capsys.readouterr()
    for taken in (tmp_path / "file", tmp_path / "no" / "out"):
        assert main([*words[:-1], str(taken)]) in (1, 2)
        assert str(taken) in capsys.readouterr().err


def test_sources_with_many_targets_and_languages_are_named(tsv) -> None:
    english = "The weather is lovely this morning."
    german = "Das Wetter ist heute Morgen herrlich."
    pairs = [(english, german), (english, german + " Ja."), (english, english)]
    spec = CorpusSpec(file=str(tsv(pairs)))
    page = page_of(check_corpus(*prepare(spec, CleaningSettings(languages=("en", "de")))))
    cells = read(page).cells
    assert "Languages: en to de." in page
    assert ("2", english) in pairwise(cells)
    assert any("language target: en" in cell for cell in cells)
