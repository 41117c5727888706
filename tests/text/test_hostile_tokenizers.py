"""Tokenizer files of strangers: rules that panic, patterns that backtrack for ever, pipes."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest
import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers

from heedful.errors import ModelError
from heedful.text import tokenizers_library
from heedful.text.imported_tokenizer import Frame, ImportedTokenizer
from heedful.text.tokenizer_pair import read_tokenizer

SPECIAL = {"pad": 0, "bos": 0, "eos": 0, "unk": 1}


def state(pattern: str | None = None) -> dict[str, object]:
    library = tokenizers.Tokenizer(models.BPE(vocab={"<e>": 0, "?": 1, "a": 2, "b": 3}, merges=[]))
    if pattern is not None:
        library.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return json.loads(library.to_str())


def test_a_pattern_that_explodes_is_an_error() -> None:
    """The library panics then, and a panic is no Exception."""
    tokenizer = ImportedTokenizer(SPECIAL, Frame(), state("(a+)+$"))
    assert tokenizer.encode("aab") == [2, 2, 3]
    text = "a" * 40 + "b"
    for encode in (tokenizer.encode, tokenizer.encode_spans):
        with pytest.raises(ModelError, match=r"tokenizer\.json.*rules fail on a text.*retry-limit"):
            encode(text)
    assert tokenizer.encode("ab") == [2, 3]


def test_a_pattern_that_takes_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the limit on one match, but at each of many places."""
    monkeypatch.setattr(tokenizers_library, "_SECONDS", 0.2)
    monkeypatch.setattr(tokenizers_library, "_SECONDS_PER_CHARACTER", 0.0)
    tokenizer = ImportedTokenizer(SPECIAL, Frame(), state("(?:a|aa)+(?=c)"))
    with pytest.raises(ModelError, match="takes too long"):
        tokenizer.encode(("a" * 26 + "b") * 100 + "c")


def test_usual_patterns_need_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers_library, "_with_timeout", None)
    library = tokenizers.Tokenizer.from_str(json.dumps(state()))
    library.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer = ImportedTokenizer(SPECIAL, Frame(), json.loads(library.to_str()))
    assert tokenizer.encode("ab") == [2, 3]


@pytest.mark.parametrize("charsmap", [b"\xff\xff\xff\x7f", b"\x04\0\0\0\1\2\3\4abc", bytes(40)])
def test_a_damaged_charsmap_is_an_error(tmp_path: Path, charsmap: bytes) -> None:
    content = state() | {
        "normalizer": {
            "type": "Precompiled",
            "precompiled_charsmap": base64.b64encode(charsmap).decode(),
        }
    }
    ours = {
        "schema_version": 1,
        "kind": "imported",
        "special": SPECIAL,
        "first": [],
        "last": [],
        "between": None,
        "vocabulary": None,
        "tokenizer": content,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(ours))
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        read_tokenizer(tmp_path / "tokenizer.json").encode("ab é")


def test_a_pipe_is_no_tokenizer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(ModelError, match="no regular file"):
        read_tokenizer(tmp_path / "tokenizer.json")
