"""`heedful translate` through the command line."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.cli.text_io import chunks, read_lines, stream_chunks

# Quick and decided: a model without training never ends a sentence by itself.
SHORT = ("--beam", "2", "--max-length", "4")


@pytest.mark.parametrize(
    "text",
    [
        b"abc\n",
        b"abc",
        b"",
        b"\n",
        b"abc\n\n\ndef\n",
        b"abc\r\ndef\r\n",
        b"   \n\t\nabc\n",
        "abc\u2028def\x0b\x0cgh\x85\nabc\n".encode(),
        b"\xef\xbb\xbfabc\n",
        "日本 ∞ 🙂\n".encode(),
        b"-- --beam\n-\n",
    ],
)
def test_one_output_line_for_each_input_line(run, model: Path, text: bytes) -> None:
    done = run("translate", model, *SHORT, stdin=text)
    assert done.status == 0
    inputs = text.split(b"\n")[:-1] if text.endswith(b"\n") else text.split(b"\n")
    assert len(done.lines) == (len(inputs) if text else 0)
    for given_line, line in zip(inputs, done.lines, strict=False):
        assert (line == "") == (given_line.removeprefix(b"\xef\xbb\xbf").strip() == b"")


def test_files_and_standard_streams_agree(run, model: Path, tmp_path: Path) -> None:
    text = b"abc\n\nde f\n"
    plain, packed, out = tmp_path / "in.txt", tmp_path / "in.txt.gz", tmp_path / "out.txt"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text))
    expected = run("translate", model, *SHORT, stdin=text).out
    assert expected.count("\n") == 3
    assert run("translate", model, *SHORT, "-i", plain).out == expected
    assert run("translate", model, *SHORT, "-i", packed).out == expected
    assert run("translate", model, *SHORT, "-i", "-", "-o", "-", stdin=text).out == expected
    done = run("translate", model, *SHORT, "-i", plain, "-o", out)
    assert done.out == ""
    assert out.read_text(encoding="utf-8") == expected


def test_a_beam_wider_than_the_vocabulary_is_refused(run, model: Path) -> None:
    done = run("translate", model, "--beam", 100_000, stdin=b"abc\n")
    assert (done.status, done.out) == (2, "")
    assert "beam = 100000: The beam is wider than the model's vocabulary" in done.err


def test_chunks_change_nothing(run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"".join(b"abc %d\n" % i for i in range(23))
    sampled = ("--sampling", "--temperature", "1.5", "--max-length", "6")
    whole = run("translate", model, *sampled, stdin=text)
    monkeypatch.setattr("heedful.cli.translate.CHUNK", 5)
    assert run("translate", model, *sampled, stdin=text).out == whole.out
    assert len(set(whole.lines)) > 5


def test_chunks_keep_prefixes_in_step(
    run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heedful.cli.translate.CHUNK", 2)
    file = tmp_path / "prefixes"
    file.write_text("".join(f"{c}\n" for c in "abcdefg"), encoding="utf-8")
    done = run("translate", model, *SHORT, "--prefix-file", file, stdin=b"abc\n" * 7)
    assert [line[0] for line in done.lines] == list("abcdefg")


def test_a_cut_off_asks_for_sampling(run, model: Path) -> None:
    text = b"abc\n" * 8
    drawn = run("translate", model, "--top-k", "5", "--max-length", "6", "--seed", "3", stdin=text)
    assert drawn.status == 0
    assert len(set(drawn.lines)) > 1
    assert len(set(run("translate", model, *SHORT, stdin=text).lines)) == 1


def test_columns(run, model: Path) -> None:
    done = run(
        "translate", model, *SHORT, "--n-best", "2", "--scores", "--alignment", stdin=b"ab c\n\n"
    )
    first, second = (line.split("\t") for line in done.lines)
    assert len(first) == 6
    assert float(first[0]) <= 0.0
    assert float(first[3]) <= 0.0
    words = len(first[1].split())
    for link in first[2].split():
        source, target = map(int, link.split("-"))
        assert source in (0, 1)
        assert target < words
    assert second == ["0.0000", "", ""]


def test_json_items(run, model: Path) -> None:
    asked = ("--json", "--n-best", "2", "--alignment")
    done = run("translate", model, *SHORT, *asked, stdin=b"ab c\n\n")
    full, empty = map(json.loads, done.lines)
    assert set(full) == {"text", "score", "alignment", "n_best"}
    assert [full["text"], full["score"]] == [full["n_best"][0][k] for k in ("text", "score")]
    assert len(full["n_best"]) == 2
    assert full["alignment"]["source"] == ["ab", "c"]
    assert len(full["alignment"]["weights"]) == len(full["alignment"]["target"])
    assert empty["text"] == ""
    assert empty["n_best"] == [{k: empty[k] for k in ("text", "score", "alignment")}]


def test_json_and_text_agree(run, model: Path) -> None:
    text = b"abc\nde\n"
    plain = run("translate", model, *SHORT, "--scores", stdin=text).lines
    items = [
        json.loads(line) for line in run("translate", model, *SHORT, "--json", stdin=text).lines
    ]
    assert plain == [f"{item['score']:.4f}\t{item['text']}" for item in items]


def test_prefixes(run, model: Path, tmp_path: Path) -> None:
    same = run("translate", model, *SHORT, "--prefix", "ba", stdin=b"abc\nde\n")
    assert all(line.startswith("ba") for line in same.lines)
    file = tmp_path / "prefixes"
    file.write_text("fe\n\n", encoding="utf-8")
    each = run("translate", model, *SHORT, "--prefix-file", file, stdin=b"abc\nde\n")
    assert each.lines[0].startswith("fe")
    assert each.lines[1] == run("translate", model, *SHORT, stdin=b"de\n").lines[0]
    for text in (b"abc\n", b"abc\nde\nfg\n"):
        wrong = run("translate", model, *SHORT, "--prefix-file", file, stdin=text)
        assert wrong.status == 2
        assert str(file) in wrong.err
    assert run("translate", model, "--prefix", "a", "--prefix-file", file).status == 2


def test_an_ensemble_averages(run, model: Path, other_model: Path) -> None:
    def score_of(*models: Path) -> float:
        first, *others = models
        flags = [word for path in others for word in ("--ensemble", path)]
        done = run("translate", first, *SHORT, "--prefix", "abcd", "--json", *flags, stdin=b"abc\n")
        assert done.status == 0, done.err
        return json.loads(done.lines[0])["score"]

    alone, together = score_of(model), score_of(model, model)
    assert together == pytest.approx(alone, abs=1e-4)
    assert score_of(model, other_model) != pytest.approx(alone, abs=1e-4)


def test_report(run, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    done = run("translate", model, *SHORT, "--report", file, "--json", stdin=b"abc\n\n")
    report = json.loads(file.read_text(encoding="utf-8"))
    assert len(done.lines) == 2  # the report is not among the items
    assert report["command"] == "translate"
    assert report["lines"] == 2
    assert report["settings"]["beam"] == 2
    assert report["seconds"] >= report["load_seconds"] > 0
    assert report["peak_memory_bytes"] > 10**6


def test_a_long_line_is_translated_in_pieces(run, model: Path) -> None:
    """100,000 tokens where the model reads 32 at once."""
    line = b"abc defg " * 11_200
    done = run("translate", model, "--beam", "1", "--max-length", "1", stdin=line + b"\nabc\n")
    assert done.status == 0
    assert len(done.lines) == 2
    assert "pieces" in done.err
    assert len(done.lines[0]) > 1000


def test_a_sender_that_waits_gets_an_answer(model: Path) -> None:
    """One line is translated before the next one is there."""
    command = [sys.executable, "-m", "heedful", "translate", str(model), *SHORT]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, **pipes) as process:
        limit = threading.Timer(60, process.kill)
        limit.start()
        for _ in range(2):
            process.stdin.write("abc\n")
            process.stdin.flush()
            assert process.stdout.readline().strip()
        process.stdin.close()
        assert process.stdout.read() == ""
        limit.cancel()
    assert process.returncode == 0


class Dripping(io.RawIOBase):
    """Gives its bytes in pieces of given sizes."""

    def __init__(self, content: bytes, sizes: list[int]) -> None:
        self.content = content
        self.sizes = sizes

    def read1(self, _: int) -> bytes:
        size = self.sizes.pop() if self.sizes else len(self.content)
        taken, self.content = self.content[:size], self.content[size:]
        return taken or (self.read1(0) if self.content else b"")


@given(
    text=st.text(st.sampled_from("ab\né\u2028 ")),
    sizes=st.lists(st.integers(1, 4)),
    limit=st.integers(1, 3),
)
def test_lines_do_not_depend_on_how_bytes_arrive(text: str, sizes: list[int], limit: int) -> None:
    expected = text.split("\n")
    if expected[-1] == "":
        expected.pop()
    got = list(stream_chunks(Dripping(text.encode(), sizes), "input", limit))
    assert [line for chunk in got for line in chunk] == expected
    assert all(0 < len(chunk) <= limit for chunk in got)


def test_lines_of_a_pipe_come_without_waiting() -> None:
    read, write = os.pipe()
    with (
        ThreadPoolExecutor(1) as waiter,
        os.fdopen(read, "rb") as stream,
        os.fdopen(write, "wb", buffering=0) as sender,
    ):
        arrived = stream_chunks(stream, "pipe", 10)

        def soon() -> list[str]:
            try:
                return waiter.submit(next, arrived).result(timeout=10)
            except TimeoutError:
                sender.close()  # lets the thread end
                raise

        sender.write(b"one\ntwo\nthr")
        assert soon() == ["one", "two"]
        sender.write(b"ee\n")
        assert soon() == ["three"]
        sender.close()
        assert list(arrived) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_input_comes_from_a_pipe(tmp_path: Path) -> None:
    """As `-i <(command)` of a shell gives it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for read in (lambda: list(chunks(pipe, 2)), lambda: [read_lines(pipe)]):
        writer = threading.Thread(target=pipe.write_bytes, args=(b"a\nb\nc\n",))
        writer.start()
        lines = [line for chunk in read() for line in chunk]
        writer.join()
        assert lines == ["a", "b", "c"]


def test_terms_of_a_glossary_are_counted(run, tmp_path: Path) -> None:
    terms, report = tmp_path / "terms.tsv", tmp_path / "report.json"
    terms.write_text("dog\tKöter\nBoston\t\tkeep\n", encoding="utf-8")
    text = b"I like Boston.\nThe dog is here.\nYes.\n"
    done = run("translate", "en-de", "--glossary", terms, "--report", report, stdin=text)
    assert done.status == 0
    assert "Boston" in done.lines[0]
    assert "Köter" in done.lines[1]
    assert "2 of 2 terms and protected parts of the text are in the translations" in done.err
    counts = json.loads(report.read_text())
    assert (counts["required"], counts["missing"]) == (2, 0)
    done = run("translate", "en-de", "--glossary", terms, "--max-length", "1", "--json", stdin=text)
    lacking = [json.loads(line).get("missing") for line in done.lines]
    assert lacking[1:] == [["dog → Köter"], None]
    assert "line 2: the translation lacks dog → Köter" in done.err


def test_a_glossary_is_read_before_the_text(run, tmp_path: Path) -> None:
    terms = tmp_path / "terms.tsv"
    terms.write_text("dog\tHund\ncat\n")
    done = run("translate", "en-de", "--glossary", terms)
    assert done.status == 2
    assert f"{terms}:2: There is no target." in done.err


def test_a_model_without_reserved_tokens_keeps_parts(run) -> None:
    done = run("translate", "en-de", "--protect", "urls", stdin=b"I read http://a.b/c.\n")
    assert done.status == 0
    assert done.lines[0].count("http://a.b/c") == 1
    done = run("translate", "en-de", "--protect", "none", stdin=b"Yes.\n")
    assert (done.status, done.lines) == (0, ["Ja."])
    done = run("translate", "en-de", "--protect", "links", stdin=b"http://a.b\n")
    assert done.status == 2
    assert "'links'" in done.err


def test_unknown_letters_are_named_once(run, model: Path) -> None:
    done = run("translate", model, "--max-length", "3", stdin="ab é\na é東! 🐱\nab\n".encode())
    assert done.status == 0
    assert done.err.count("3 characters unknown to the model") == 1
    assert "é 東" in done.err
    assert "unknown" not in run("translate", model, "--max-length", "3", stdin=b"ab cd\n").err


def test_info_says_how_text_is_spelled(run, model: Path) -> None:
    assert "tokenizer.normalization = nfc-2" in run("info", model).err
    assert json.loads(run("info", model, "--json").out)["normalization"] == "nfc-2"


def test_a_text_stands_in_the_command(run, model: Path, tmp_path: Path) -> None:
    assert run("translate", model, "abc de").out == run("translate", model, stdin=b"abc de\n").out
    (tmp_path / "text").write_text("abc\n")
    done = run("translate", model, tmp_path / "text")
    assert (done.status, done.out) == (2, "")
    assert f"--input {tmp_path / 'text'}" in done.err
    assert "not both" in run("translate", model, "abc", "-i", tmp_path / "text").err
