"""Settings files: what is written reads back equal, and mistakes are named."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.config import dump_toml, flat, merge, read_toml
from heedful.errors import ConfigError
from heedful.train.run_settings import RunSettings

VALUES = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text("ab.é \"'\n", max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.text('abc-_.é \\"', max_size=4), VALUES, max_size=5))
def test_what_is_written_reads_back_equal(values: dict[str, object]) -> None:
    assert tomllib.loads(dump_toml(values)) == values


def test_settings_of_a_run_read_back_equal(tmp_path: Path) -> None:
    corpora = [{"source": 'a "b"\\c.en', "target": "é.de", "weight": 0.5}, {"file": "x.tsv"}]
    settings = RunSettings.parse({"max_steps": 3, "data": {"train": corpora, "valid": corpora[1:]}})
    file = tmp_path / "config.toml"
    file.write_text(dump_toml(settings.plain()), encoding="utf-8")
    assert RunSettings.parse(read_toml(file)) == settings


def test_none_cannot_be_written() -> None:
    with pytest.raises(TypeError):
        dump_toml({"a": None})


def test_tables_are_merged_and_flattened() -> None:
    merged = merge({"a": {"b": 1, "c": [1]}, "d": 1}, {"a": {"c": [2]}, "d": {"e": 2}})
    assert merged == {"a": {"b": 1, "c": [2]}, "d": {"e": 2}}
    assert flat(merged) == {"a.b": 1, "a.c": [2], "d.e": 2}


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"a = ", "Not TOML"), (b"\xff", "Cannot be read"), (None, "No such configuration file")],
)
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "config.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as caught:
        read_toml(file)
    assert caught.value.where == str(file)
    assert caught.value.remedy
