"""`heedful shortlist`, and `heedful translate` with what it makes."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

import pytest

SHORT = ("--beam", "2", "--max-length", "4")


@pytest.fixture
def copied(model: Path, tmp_path: Path) -> Path:
    """A model directory to write into."""
    return Path(shutil.copytree(model, tmp_path / "copied"))


def test_a_shortlist_is_made_and_used(run, copied: Path, pairs, tmp_path: Path) -> None:
    source, target = pairs
    flags = ("--source", source, "--target", target, "--per-token", 2, "--frequent", 1)
    report = tmp_path / "report.json"
    done = run("shortlist", copied, *flags, "--json", "--report", report)
    assert done.status == 0, done.err
    facts = json.loads(done.out)
    assert facts == json.loads(report.read_text(encoding="utf-8"))
    file = copied / "shortlist.safetensors"
    assert facts["file"] == str(file)
    assert facts["pairs"] == 60
    assert facts["skipped"] == 0
    assert 0.5 < facts["coverage"] <= 1
    assert 1 < facts["list_size"] < facts["vocabulary"]
    assert facts["bytes"] == file.stat().st_size
    assert "a shortlist from 60 pairs" in done.err
    assert not list(copied.glob("*partial*"))

    text = b"abc\n\nfgh\n"
    plain = run("translate", copied, *SHORT, stdin=text)
    short = run("translate", copied, *SHORT, "--shortlist", "--report", report, stdin=text)
    assert short.status == 0, short.err
    assert len(short.lines) == 3
    assert short.out != plain.out
    assert json.loads(report.read_text(encoding="utf-8"))["settings"]["shortlist"] is True

    # The same pairs, compressed, make the same file, wherever it goes.
    packed = tmp_path / "packed.gz"
    packed.write_bytes(gzip.compress(source.read_bytes()))
    elsewhere = tmp_path / "elsewhere.safetensors"
    done = run("shortlist", copied, *flags[2:], "--source", packed, "-o", elsewhere)
    assert done.status == 0, done.err
    assert elsewhere.read_bytes() == file.read_bytes()
    file.unlink()
    with_file = run("translate", copied, *SHORT, "--shortlist-file", elsewhere, stdin=text)
    assert with_file.out == short.out


def test_a_shortlist_of_all_tokens_changes_nothing(run, copied: Path, pairs) -> None:
    source, target = pairs
    done = run("shortlist", copied, "--source", source, "--target", target, "--frequent", 999)
    assert done.status == 0, done.err
    text = b"abc\n\nfgh ij\nnop\n"
    flags = ("--beam", 3, "--n-best", 2, "--scores", "--max-length", 9)
    plain = run("translate", copied, *flags, stdin=text)
    assert run("translate", copied, *flags, "--shortlist", stdin=text).out == plain.out


def test_what_cannot_be_learned_from(run, copied: Path, pairs, tmp_path: Path, make_encoder):
    source, target = pairs

    def refused(*words) -> str:
        done = run("shortlist", *words)
        assert done.status == 2, done.err
        assert done.out == ""
        assert not (copied / "shortlist.safetensors").exists()
        assert "Traceback" not in done.err
        return done.err.splitlines()[-1]

    flags = ("--source", source, "--target", target)
    longer = tmp_path / "longer"
    longer.write_text(target.read_text("utf-8") + "abc\n", encoding="utf-8")
    said = refused(copied, "--source", source, "--target", longer)
    assert "60 lines" in said
    assert "61" in said
    empty = tmp_path / "empty"
    empty.write_text("", encoding="utf-8")
    assert "no pairs" in refused(copied, "--source", empty, "--target", empty)
    empty.write_text("\n\n", encoding="utf-8")
    assert "text on both sides" in refused(copied, "--source", empty, "--target", empty)
    assert "No such file" in refused(copied, "--source", tmp_path / "no", "--target", target)
    for flag in ("--per-token", "--frequent"):
        assert flag in refused(copied, *flags, flag, 0)
    assert "No such directory" in refused(copied, *flags, "-o", tmp_path / "no" / "file")
    encoder = make_encoder(tmp_path / "encoder")
    assert "no translator; its kind is 'encoder'" in refused(encoder, *flags)
    assert "No such model directory" in refused(tmp_path / "none", *flags)


def test_what_cannot_be_translated_with(run, copied: Path, pairs) -> None:
    source, target = pairs
    done = run("translate", copied, "--shortlist", stdin=b"abc\n")
    assert done.status == 2
    assert done.out == ""
    assert "no such shortlist" in done.err
    assert "heedful shortlist" in done.err
    assert run("shortlist", copied, "--source", source, "--target", target).status == 0
    file = copied / "shortlist.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    done = run("translate", copied, "--shortlist", stdin=b"abc\n")
    assert done.status == 2
    assert "The shortlist cannot be read" in done.err
    assert run("translate", copied, *SHORT, stdin=b"abc\n").status == 0
