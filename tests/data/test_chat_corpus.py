"""Files of conversations: whole ones share a window, and answers alone are learned."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from heedful.data.batches import NO_TARGET
from heedful.data.chat_corpus import ChatReader, PreferenceReader, has_conversations
from heedful.data.chat_windows import whole_windows
from heedful.data.encoded_texts import EncodedTexts, encode_texts, make_windows
from heedful.errors import DataError
from heedful.text.chat_template import ChatTemplate
from heedful.text.tokenizer import Tokenizer
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_tokenizer

CHATS = [[f"say {word}", word, "again", word] for word in ("red", "blue", "green", "white")]


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def encoded(folder: Path) -> tuple[EncodedTexts, Tokenizer]:
    roles = ("user", "assistant")
    lines = [
        {"messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(chat)]}
        for chat in CHATS
    ]
    lines.append({"prompt": "say black", "answer": "black"})
    reader = ChatReader(write(folder / "chats.jsonl", *lines), ChatTemplate())
    texts = [each.text for each in reader]
    tokenizer = train_tokenizer(TokenizerSpec(kind="characters"), texts * 3, print)
    return encode_texts([reader], tokenizer, folder / "cache"), tokenizer


def test_windows_hold_whole_conversations_whose_answers_are_learned(tmp_path: Path) -> None:
    texts, tokenizer = encoded(tmp_path)
    starts, ends = whole_windows(texts, 140)
    assert 1 < len(starts) < texts.texts  # some share a window
    assert starts[0] == 0
    assert ends[-1] == len(texts)
    assert (starts[1:] == ends[:-1]).all()
    batch = make_windows(texts, starts, 140, ends)
    # A conversation sees itself alone: it begins at position 0, in a segment of its own.
    begins = (batch.ids == tokenizer.bos) & (batch.positions >= 0)
    assert int(begins.sum()) == texts.texts
    assert (batch.positions[begins] == 0).all()
    for row in range(len(starts)):
        real = batch.positions[row] >= 0
        assert len(batch.segments[row][real].unique()) == int(begins[row].sum())
    learned = batch.targets[batch.targets != NO_TARGET].tolist()
    assert learned.count(tokenizer.eos) == 2 * len(CHATS) + 1
    words = [word for chat in CHATS for word in chat[1::2]] + ["black"]
    assert tokenizer.decode([i for i in learned if i != tokenizer.eos]) == "".join(words)
    assert batch.target_tokens == len(learned)


def test_a_conversation_longer_than_a_window_is_named(tmp_path: Path) -> None:
    texts, _ = encoded(tmp_path)
    longest = int(np.diff(texts.bounds).max()) - 1
    whole_windows(texts, longest)
    with pytest.raises(DataError, match=r"chats\.jsonl:3.*conversation has \d+ tokens") as raised:
        whole_windows(texts, longest - 1)
    assert f"data.max_length to {longest}" in str(raised.value)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ({"messages": [{"role": "user", "content": "hello"}]}, "no answer"),
        ({"messages": []}, "no messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role 'robot'"),
        ({"messages": [{"role": "user", "content": 3}]}, "no text as its content"),
        ({"prompt": "hello", "answer": None}, "no text as its content"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: object, problem: str) -> None:
    path = write(tmp_path / "c.jsonl", {"prompt": "a", "answer": "b"}, line)
    assert has_conversations(path)
    with pytest.raises(DataError, match=problem) as raised:
        list(ChatReader(path, ChatTemplate()))
    assert raised.value.where is not None
    assert "c.jsonl:2" in raised.value.where


def test_texts_are_no_conversations(tmp_path: Path) -> None:
    assert not has_conversations(write(tmp_path / "t.jsonl", {"text": "a", "prompt": "b"}))
    (tmp_path / "t.txt").write_text('{"messages": []}\n', encoding="utf-8")
    assert not has_conversations(tmp_path / "t.txt")


def test_only_the_two_answers_of_a_preference_are_learned(tmp_path: Path) -> None:
    _, tokenizer = encoded(tmp_path)
    said = [("user", "say red"), ("assistant", "red"), ("user", "again")]
    prompt = [{"role": role, "content": text} for role, text in said]
    line = {"prompt": prompt, "chosen": "blue", "rejected": [{"content": "green"}]}
    reader = PreferenceReader(write(tmp_path / "pairs.jsonl", line), ChatTemplate())
    found = [
        tokenizer.decode([id for id, is_own in zip(ids, learned, strict=True) if is_own])
        for _, ids, learned in reader.encoded(tokenizer)
    ]
    assert found == ["blue", "green"]
