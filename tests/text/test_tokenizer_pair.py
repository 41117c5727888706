"""The tokenizers of a translator, joint and separate, in a model directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from heedful.errors import ModelError
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

ENGLISH = ["the dog sees the cat", "the cat sees the dog"] * 5
GERMAN = ["der hund sieht die katze", "die katze sieht den hund"] * 5


def test_joint_is_one_tokenizer_of_both(tmp_path: Path) -> None:
    pair = train_pair(TokenizerSpec(vocabulary_size=100), iter(ENGLISH), iter(GERMAN))
    assert pair.joint
    assert pair.source.unk not in pair.source.encode("der dog")
    pair.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
    again = TokenizerPair.load(tmp_path)
    assert again.joint
    assert again.fingerprint == pair.fingerprint


def test_separate_tokenizers_know_their_language(tmp_path: Path) -> None:
    spec = TokenizerSpec(vocabulary_size=100, joint=False)
    pair = train_pair(spec, iter(ENGLISH), iter(GERMAN))
    assert not pair.joint
    assert pair.source.unk in pair.source.encode("katze z")
    assert pair.target.unk not in pair.target.encode("katze")
    pair.save(tmp_path)
    again = TokenizerPair.load(tmp_path)
    assert not again.joint
    assert again.fingerprint == pair.fingerprint
    assert again.target.encode(GERMAN[0]) == pair.target.encode(GERMAN[0])


def test_equal_but_separate_tokenizers_stay_separate(tmp_path: Path) -> None:
    pair = train_pair(TokenizerSpec(vocabulary_size=100, joint=False), ENGLISH, ENGLISH)
    assert not pair.joint
    pair.save(tmp_path)
    assert not TokenizerPair.load(tmp_path).joint


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no tokenizer"):
        TokenizerPair.load(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match="cannot be read") as caught:
        TokenizerPair.load(tmp_path)
    assert caught.value.where == str(tmp_path / "tokenizer.json")
