"""Input that is waited for, whatever the number of its descriptor."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from heedful.cli.text_io import stream_chunks


def test_lines_of_a_pipe_with_a_high_descriptor_come_at_once(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    try:
        reader, writer = os.pipe()
        high = os.dup2(reader, 1500)  # select() ends at 1024
        os.close(reader)
        with os.fdopen(high, "rb") as stream, os.fdopen(writer, "wb", buffering=0) as sender:
            sender.write(b"one\n")
            chunks = stream_chunks(stream, "pipe", 10)
            assert next(chunks) == ["one"]  # without waiting for more
            sender.write(b"two\n")
            assert next(chunks) == ["two"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_lines_of_a_regular_file_come_in_full_lists(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_text("a\nb\nc\n")
    with file.open("rb") as stream:
        assert list(stream_chunks(stream, "file", 2)) == [["a", "b"], ["c"]]
