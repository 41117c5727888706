"""COMET: its command is called with the right texts, and its scores come back."""

from __future__ import annotations

import json
import stat
import sys
import sysconfig
from pathlib import Path

import pytest

from heedful.apps.evaluation.comet_metric import COMET_MODEL, comet_scores
from heedful.cli.main import main
from heedful.errors import ConfigError, RunError

# Scores a translation by the share of the reference's characters that it has at their places.
PROGRAM = """#!{python}
import json, sys
arguments = sys.argv[1:]
def after(flag):
    return arguments[arguments.index(flag) + 1]
def lines(path):
    return [line.strip() for line in open(path, encoding="utf-8").readlines()]
if after("--model") == "nowhere":
    print("loading", file=sys.stderr)
    sys.exit("KeyError: Model 'nowhere' not supported by COMET.")
first = arguments.index("-t") + 1
files = arguments[first : arguments.index("--model")]
texts = [lines(after("-s")), lines(after("-r"))]
rows = {{}}
for file in files:
    rows[file] = [
        {{"src": s, "mt": t, "COMET": sum(a == b for a, b in zip(r, t)) / len(r) / len(s)}}
        for s, r, t in zip(*texts, lines(file), strict=True)
    ]
json.dump(rows, open(after("--to_json"), "w", encoding="utf-8"))
json.dump(arguments, open({log!r}, "w"))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for comet-score; returns the file to which it writes its arguments."""
    (tmp_path / "bin").mkdir()
    log = tmp_path / "arguments.json"
    path = tmp_path / "bin" / "comet-score"
    path.write_text(PROGRAM.format(python=sys.executable, log=str(log)), encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "bin"))
    return log


def test_scores_of_several_systems(program: Path) -> None:
    systems = {"one": ["ab", "x\ry"], "two": ["aa", ""]}
    found = comet_scores(["s", "ss"], systems, ["ab", "xzy"])
    assert found == {"one": [1.0, pytest.approx(1 / 3)], "two": [0.5, 0.0]}
    arguments = json.loads(program.read_text())
    assert arguments[arguments.index("--model") + 1] == COMET_MODEL
    assert arguments[arguments.index("--gpus") + 1] == "0"


def test_a_failure_is_told_with_the_last_lines(program: Path) -> None:
    with pytest.raises(RunError, match="COMET failed: loading; KeyError: Model 'nowhere'"):
        comet_scores(["s"], {"one": ["a"]}, ["a"], model="nowhere")


def test_without_the_program_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(ConfigError, match="pipx install unbabel-comet"):
        comet_scores(["s"], {"one": ["a"]}, ["a"])


def test_the_verb_scores_and_compares(
    program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("s", "x\nx\n"), ("r", "ab\ncd\n"), ("a", "ab\ncc\n"), ("b", "bb\ncd\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    a, b, s, r = (str(tmp_path / name) for name in "absr")
    flags = ["--reference", r, "--metrics", "comet", "chrf", "--json"]
    assert main(["evaluate", a, "--source", s, "--baseline", b, *flags]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["scores"].keys() == {"chrf", "comet"}
    assert record["scores"]["comet"]["score"] == 75
    assert record["scores"]["comet"]["signature"] == f"model:{COMET_MODEL}|scale:100"
    assert record["comparison"]["comet"]["difference"]["score"] == 0
    assert main(["evaluate", a, *flags]) == 2
    assert "Add --source FILE" in capsys.readouterr().err
