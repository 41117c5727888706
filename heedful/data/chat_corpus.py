"""Corpora of conversations: lines of JSON with messages, of which the answers are learned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heedful.data.corpus_file import CorpusFile
from heedful.data.text_corpus import CorpusDocument
from heedful.data.text_file import parse_json
from heedful.errors import DataError
from heedful.text.chat_template import (
    BOS,
    EOS,
    REMEDY,
    ChatTemplate,
    check_messages,
    encode_whole,
)
from heedful.text.tokenizer import TextTokenizer

_KEYS = ("messages", "prompt")


@dataclass(frozen=True)
class ChatReader(CorpusFile):
    """The conversations of one file.

    Args:
        path: file of lines of JSON with `messages`, or `prompt` and `answer`.
        template: template by which they become text.
    """

    template: ChatTemplate

    def __iter__(self) -> Iterator[CorpusDocument]:
        """Yield the conversations as text, for training a tokenizer and for messages.

        Raises:
            DataError: when a line is no conversation with an answer, with file and line.
        """
        for number, where, messages in self._conversations():
            text, _ = self.template.with_answers(messages, where)
            # The characters for tokens are no part of what a tokenizer learns.
            yield CorpusDocument(number, text.replace(BOS, "").replace(EOS, ""))

    def encoded(self, tokenizer: TextTokenizer) -> Iterator[tuple[int, list[int], list[bool]]]:
        """Yield line, ids with begin and end token, and which of them are learned.

        Raises:
            DataError: as in `__iter__`.
        """
        for number, where, messages in self._conversations():
            ids, learned = encode_whole(tokenizer, *self.template.with_answers(messages, where))
            if not any(learned):
                raise DataError("The answers have no tokens", where=where, remedy=REMEDY)
            yield number, ids, learned

    def content_hash(self) -> str:
        """Return the SHA-256, in hexadecimal, of the file and of the template."""
        return self.hash_with(f"chat {self.template.source}")

    def _conversations(self) -> Iterator[tuple[int, str, list[dict[str, str]]]]:
        def read() -> Iterator[tuple[int, str, list[dict[str, str]]]]:
            for number, where, line in self.filled_lines():
                messages = check_messages(parse_json(line, where, REMEDY), where)
                if all(each["role"] != "assistant" for each in messages):
                    raise DataError(
                        "The conversation has no answer of the assistant",
                        where=where,
                        remedy=REMEDY,
                    )
                yield number, where, messages

        return self.at_least_one(read(), "conversation")


def has_conversations(path: Path) -> bool:
    """Return True if the first line of a file of JSON is a conversation."""
    file = CorpusFile(path)
    if not file.is_jsonl:
        return False
    for _, _, line in file.filled_lines():
        try:
            item: Any = json.loads(line)
        except (ValueError, RecursionError):
            return False  # the reader of texts names what is wrong
        return isinstance(item, dict) and "text" not in item and any(k in item for k in _KEYS)
    return False
