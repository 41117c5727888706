"""The site's build refuses what a reader would stumble over."""

from __future__ import annotations

import subprocess
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools/build_site.py"
GOOD = "# Start\n\n[here](#start) [there](other.md#other)\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The tool, on a project of two pages."""
    spec = spec_from_file_location("build_site", TOOL)
    assert spec is not None
    assert spec.loader is not None
    tool = module_from_spec(spec)
    spec.loader.exec_module(tool)
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text(GOOD)
    (docs / "other.md").write_text("# Other\n")
    (tmp_path / "mkdocs.yml").write_text(
        "site_name: x\ndocs_dir: build/pages\nsite_dir: build/site\ntheme:\n  font: false\n"
        "nav:\n  - index.md\n  - Section:\n      - Other: other.md\n"
    )
    for name, path in (("ROOT", tmp_path), ("DOCS", docs), ("PAGES", tmp_path / "build/pages")):
        monkeypatch.setattr(tool, name, path)
    return tool


def test_good_pages_are_built(site: ModuleType) -> None:
    assert site.build() == 0
    assert "there" in (site.ROOT / "build/site/index.html").read_text(encoding="utf-8")


def test_what_is_missing_is_named(site: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    lines = "[x](none.md) [x](other.md#none) ![x](none.png) <img alt='' src=\"none.gif\">"
    (site.DOCS / "index.md").write_text(f"{GOOD}\n{lines}\n")
    (site.DOCS / "lonely.md").write_text("# Lonely\n")
    assert site.build() == 1
    told = capfd.readouterr().err
    assert told.count("page does not exist") == 2  # with the place and beside it
    assert "anchor does not exist" in told
    assert "docs/index.md: there is no image none.png" in told
    assert "docs/index.md: there is no image none.gif" in told
    assert "docs/lonely.md is not in nav" in told


@pytest.mark.parametrize(("faults", "zensical"), [(1, 0), (0, 1), (0, 0)])
def test_each_kind_of_fault_fails(
    site: ModuleType, monkeypatch: pytest.MonkeyPatch, faults: int, zensical: int
) -> None:
    built = subprocess.CompletedProcess((), zensical, "", "")
    monkeypatch.setattr(site.subprocess, "run", lambda *_, **__: built)
    if faults:
        (site.DOCS / "lonely.md").write_text("# Lonely\n")
    assert site.build() == faults + zensical


def test_results_of_benchmarks_are_filled_in(
    site: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site.ROOT / "table.md").write_text("| a |\n|---|\n| 1 |\n")
    (site.ROOT / "chart.svg").write_text("<svg/>")
    monkeypatch.setattr(site, "RESULTS", site.ROOT)
    assert site.fill("x <!-- result table.md -->") == "x | a |\n|---|\n| 1 |"
    assert site.fill("<!-- result chart.svg -->").startswith('<img alt="chart.svg" src="data:')
    assert site.fill("<!-- else -->") == "<!-- else -->"
