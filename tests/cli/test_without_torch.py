"""The command line where PyTorch is not installed: it translates, and says what needs PyTorch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import heedful
from heedful.cli.main import VERBS
from heedful.kernels.library import kernels

# One process for all commands, since each would start Python and load the libraries anew.
RUN = """
import contextlib, importlib.abc, io, json, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from heedful.cli.main import main
results = []
for words, text in json.loads(sys.argv[1]):
    out, error = io.StringIO(), io.StringIO()
    sys.stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        status = main(words)
    results.append([status, out.getvalue(), error.getvalue()])
assert "torch" not in sys.modules
print(json.dumps(results))
"""

WORK = {
    "translate": ["translate", "en-de"],
    "translate-file": ["translate-file", "a.html", "b.html", "--model", "en-de"],
    "check": ["check", "a.txt", "b.txt", "--model", "en-de", "--languages", "en-de"],
    "score": ["score", "en-de", "--source", "a.txt", "--target", "b.txt"],
    "evaluate": ["evaluate", "en-de", "--source", "a.txt", "--reference", "b.txt"],
    "models": ["models"],
    "info": ["info", "en-de"],
    "doctor": ["doctor"],
    "data check": ["data", "check", "a.txt", "b.txt", "--out", "checked"],
    "data clean": ["data", "clean", "a.txt", "b.txt", "--out", "cleaned"],
    "data world": ["data", "world", "world.jsonl", "--episodes", "5"],
    "data midi": ["data", "midi", "notes.jsonl", "--out", "tunes"],
    "data shard": ["data", "shard", "a.txt", "b.txt", "--out", "shards"],
}
NEED = {
    "demo": ["demo", "--out", "demo"],
    "train": ["train", "run", "--preset", "tiny", "--train", "a.txt", "b.txt"],
    "act": ["act", "english"],
    "generate": ["generate", "english", "--prompt", "The"],
    "fill": ["fill", "english-masked", "a [MASK]"],
    "classify": ["classify", "digits", "a.png"],
    "tag": ["tag", "english-masked", "a b"],
    "embed": ["embed", "english-masked", "a b"],
    "answer": ["answer", "english-masked", "b", "--question", "a"],
    "compare": ["compare", "--out", "compared"],
    "sweep": ["sweep", "tiny", "--over", "model.width=64,128", "--out", "swept"],
    "frontier": ["frontier", "en-de", "--source", "a.txt", "--reference", "b.txt"],
    "import": ["import", "model", "out"],
    "merge": ["merge", "model", "adapter", "out"],
    "export": ["export", "en-de", "out", "--format", "hf"],
    "inspect": ["inspect", "en-de", "a b"],
    "heads": ["heads", "en-de", "--source", "a.txt", "--target", "b.txt"],
    "ablate": ["ablate", "en-de", "--source", "a.txt", "--target", "b.txt"],
    "prune": ["prune", "en-de", "out", "--source", "a.txt", "--target", "b.txt"],
    "align": ["align", "en-de", "--source", "a.txt", "--target", "b.txt"],
    "data codes": ["data", "codes", "digits", "pictures.jsonl", "--out", "records.jsonl"],
    "data pictures": ["data", "pictures", "digits", "notes.jsonl", "--out", "drawn"],
    "shortlist": ["shortlist", "en-de", "--source", "a.txt", "--target", "b.txt"],
    "plan": ["plan", "tiny", "--devices", "2"],
    "presets": ["presets"],
    "studio": ["studio", "--no-browser", "--port", "0"],
    "serve": ["serve", "en-de"],
}
# Neither asks for PyTorch before its corpus is found too small.
TOO_FEW = {"calibrate", "data split"}
TEXT = "See https://example.org: <b>cats</b> are {n}.\nThe bank is closed today. I love cats.\n"


def run(commands: list[list[str]], folder: Path) -> list[tuple[int, str, str]]:
    code = [sys.executable, "-c", RUN, json.dumps([[words, TEXT] for words in commands])]
    done = subprocess.run(code, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [(*each,) for each in json.loads(done.stdout)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("I love cats.\nThe bank is closed today.\n")
    (tmp_path / "b.txt").write_text("Ich liebe Katzen.\nDie Bank ist heute geschlossen.\n")
    (tmp_path / "notes.jsonl").write_text('{"notes": [[60, 64], [62, 0]]}\n')
    (tmp_path / "a.html").write_text("<p>I love <b>cats</b>. See https://example.org.</p>")
    return tmp_path


def test_every_verb_is_here() -> None:
    assert {*WORK, *NEED, *TOO_FEW} == {*VERBS}
    assert not WORK.keys() & NEED.keys()


@pytest.mark.skipif(kernels() is None, reason="no kernels were compiled here")
def test_what_works(folder: Path) -> None:
    flags = [*WORK["translate"], "--json", "--alignment", "--device", "auto"]
    many = [*WORK["translate"], "-i", "many.txt"]
    (folder / "many.txt").write_text("I love cats.\n" * 9)  # more than are fast without PyTorch
    commands = [*WORK.values(), flags, many]
    found = run(commands, folder)
    for words, (status, _, error) in zip(commands, found, strict=True):
        assert status == 0, (words, error)
    expected = heedful.load("en-de", device="cpu").translate(TEXT.splitlines(), alignment=True)
    translations = [json.loads(line) for line in found[-2][1].splitlines()]
    assert [each["text"] for each in translations] == expected
    assert [each["alignment"]["links"] for each in translations] == [
        each.alignment.plain()["links"] for each in expected if each.alignment is not None
    ]
    assert found[-1][1] == "Ich liebe Katzen.\n" * 9
    page = "<p>Ich liebe <b>Katzen</b>."
    assert (folder / "b.html").read_text().startswith(page)
    assert "8,368,384 parameters" in found[list(WORK).index("info")][2]


@pytest.mark.skipif(kernels() is None, reason="no kernels were compiled here")
def test_numbers_are_corrected_but_not_searched_again(folder: Path) -> None:
    text = "I have 144 cats."
    missing = "4 of the 9 players won 3 games in 2 weeks."
    flags = ([text], [text, "--numbers", "model"], [text, "--numbers", "keep"], [missing])
    found = run([["translate", "en-de", *each] for each in flags], folder)
    assert [status for status, _, _ in found] == [0] * 4
    assert [out for _, out, _ in found[:3]] == [
        f"Ich habe {number} Katzen.\n" for number in (144, 14, 144)
    ]
    assert "4" not in found[3][1]
    assert "1 still disagree" in found[3][2]


@pytest.mark.skipif(kernels() is None, reason="no kernels were compiled here")
def test_names_are_spelled_but_not_searched_again(folder: Path) -> None:
    texts = ("Heidelberg is a small town.", "Shouldn't we help Thimphu?", "Дмитрий sleeps.")
    found = run([["translate", "en-de", text] for text in texts], folder)
    assert [status for status, _, _ in found] == [0] * 3
    assert found[0][1] == "Heidelberg ist eine kleine Stadt.\n"
    assert "Thimphu" not in found[1][1]
    assert "Дмитрий" not in found[2][1]


def test_what_needs_pytorch_says_so_in_one_sentence_and_leaves_nothing(folder: Path) -> None:
    before = {*folder.iterdir()}
    sampled = [*WORK["translate"], "--sampling"]
    commands = [
        *NEED.values(),
        sampled,
        ["info", "tiny"],
        ["translate", "en-de", "Дмитрий sleeps.", "--copy-unknown"],
    ]
    for words, (status, output, error) in zip(commands, run(commands, folder), strict=True):
        assert status == 2, (words, error)
        assert output == "", words
        (line,) = error.splitlines()
        assert "PyTorch" in line or "needs torch" in line, (words, line)
        assert "pip install 'heedful[" in line, (words, line)
    assert {*folder.iterdir()} == before
