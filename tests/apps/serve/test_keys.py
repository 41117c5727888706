"""API keys: only hashes are stored, and only known keys have an owner."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import pytest

from heedful.apps.serve.keys import Keys, add_key
from heedful.errors import ConfigError


def test_a_key_has_its_owner_and_no_other(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    add_key(file, "alice", "key of alice")
    add_key(file, "bob", "key of bob")
    keys = Keys.read(file)
    assert keys.owner("key of alice") == "alice"
    assert keys.owner("key of bob") == "bob"
    assert keys.owner("key of Bob") is None
    assert keys.owner("") is None
    assert keys.owner(None) is None


def test_a_file_has_hashes_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    add_key(file, "alice", "secret")
    assert file.read_text() == f"alice {hashlib.sha256(b'secret').hexdigest()}\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_key_begins_a_line_where_the_last_one_has_no_end(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(f"alice {hashlib.sha256(b'a').hexdigest()}")
    add_key(file, "bob", "b")
    keys = Keys.read(file)
    assert (keys.owner("a"), keys.owner("b")) == ("alice", "bob")


def test_comments_and_empty_lines_count_for_nothing(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(f"# ours\n\nalice  {hashlib.sha256(b'k').hexdigest().upper()}\n")
    assert Keys.read(file).owner("k") == "alice"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "keys.txt"),
        ("# none\n", "keys.txt"),
        ("alice secret\n", "line 1"),
        (f"a {'0' * 64}\na {'1' * 64}\n", "line 2"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path: Path, text: str, where: str) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        Keys.read(file)
    assert where in str(error.value)
    assert "--new-key" in str(error.value)


def test_a_name_has_one_key(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    add_key(file, "alice", "1")
    with pytest.raises(ConfigError, match="already"):
        add_key(file, "alice", "2")
    with pytest.raises(ConfigError, match="white space"):
        add_key(file, "a b", "2")
    with pytest.raises(ConfigError, match="cannot be"):
        add_key(tmp_path / "missing" / "keys.txt", "bob", "2")
