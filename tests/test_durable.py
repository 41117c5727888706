"""Files that appear whole: links and devices stay what they are."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from heedful.cli.text_io import refuse_missing_folder
from heedful.durable import whole
from heedful.errors import UserError


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "folder" / "file")
    for content in (b"old", b"new"):
        with whole(link) as file:
            file.write(content)
        assert link.is_symlink()
        assert (tmp_path / "folder" / "file").read_bytes() == content
    assert os.listdir(tmp_path / "folder") == ["file"]
    (tmp_path / "loose").symlink_to(tmp_path / "missing" / "file")
    with pytest.raises(UserError, match="missing"):
        refuse_missing_folder(tmp_path / "loose")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    refuse_missing_folder(pipe)
    with whole(pipe) as file:
        file.write(b"text")
    reader.join(5)
    assert read == [b"text"]
    assert pipe.is_fifo()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
def test_a_full_device_is_named() -> None:
    with pytest.raises(OSError, match="/dev/full"), whole(Path("/dev/full")) as file:
        file.write(b"text")
