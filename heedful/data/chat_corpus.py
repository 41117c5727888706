"""Corpora of conversations: lines of JSON with messages, of which the answers are learned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

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
        return self.hash_with(f"{type(self).__name__} {self.template.source}")

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


_PREFERENCE_REMEDY = (
    'Each line must be an object like {"prompt": "…", "chosen": "…", "rejected": "…"}, where the '
    "prompt may be a list of messages"
)


@dataclass(frozen=True)
class PreferenceReader(ChatReader):
    """Pairs of answers to a prompt: each line is two conversations, with the better answer first.

    Only the two answers are learned, whatever turns the prompt has.
    """

    def encoded(self, tokenizer: TextTokenizer) -> Iterator[tuple[int, list[int], list[bool]]]:
        for number, where, messages in self._conversations():
            prompt = self.template.prompt(messages[:-1])
            text, own = self.template.with_answers(messages, where)
            own = [is_own and at >= len(prompt) for at, is_own in enumerate(own)]
            yield number, *encode_whole(tokenizer, text, own)

    def _conversations(self) -> Iterator[tuple[int, str, list[dict[str, str]]]]:
        def read() -> Iterator[tuple[int, str, list[dict[str, str]]]]:
            for number, where, line in self.filled_lines():
                item = parse_json(line, where, _PREFERENCE_REMEDY)
                answers = [_text_of(item, name, where) for name in ("chosen", "rejected")]
                if answers[0].strip() == answers[1].strip():
                    raise DataError(
                        "The chosen and the rejected answer are the same",
                        where=where,
                        remedy="Leave the line out",
                    )
                asked = check_messages(_with_turns({"prompt": item.get("prompt")}), where)
                for answer in answers:
                    said = {"role": "assistant", "content": answer}
                    messages = [*asked, *check_messages([said], where)]
                    yield number, where, messages

        return self.at_least_one(read(), "preference")


class PromptLine(NamedTuple):
    """A prompt of a file.

    Args:
        where: file and line.
        messages: turns before the answer.
        answer: right answer; None where the line has none.
    """

    where: str
    messages: list[dict[str, str]]
    answer: str | None


_PROMPT_REMEDY = (
    'Each line must be an object like {"prompt": "…"} or {"prompt": "…", "answer": "…"}, where the '
    "prompt may be a list of messages"
)


@dataclass(frozen=True)
class PromptReader(CorpusFile):
    """Prompts whose answers a model writes itself; lines of conversations or preferences serve."""

    def __iter__(self) -> Iterator[PromptLine]:
        """Yield the prompts.

        Raises:
            DataError: when a line has no prompt, or there is no line, with file and line.
        """

        def read() -> Iterator[PromptLine]:
            for _, where, line in self.filled_lines():
                item = parse_json(line, where, _PROMPT_REMEDY)
                messages = check_messages(_with_turns(item), where)
                last = messages[-1]
                if last["role"] != "assistant":
                    answer = item.get("answer") if isinstance(item, dict) else None
                    yield PromptLine(where, messages, answer if isinstance(answer, str) else None)
                    continue
                if not messages[:-1]:
                    raise DataError("There is no prompt", where=where, remedy=_PROMPT_REMEDY)
                yield PromptLine(where, messages[:-1], last["content"])

        return self.at_least_one(read(), "prompt")


def _with_turns(item: Any) -> Any:
    """Return a line whose prompt is a list of messages in the form that has `messages`."""
    prompt = item.get("prompt") if isinstance(item, dict) else None
    return {"messages": prompt} if isinstance(prompt, list) else item


def _text_of(item: Any, name: str, where: str) -> str:
    """Return an answer of a line, a text or a list of its one message."""
    found = item.get(name) if isinstance(item, dict) else None
    if isinstance(found, list) and found and isinstance(found[-1], dict):
        found = found[-1].get("content")
    if not isinstance(found, str) or not found.strip():
        raise DataError(f"There is no {name} answer", where=where, remedy=_PREFERENCE_REMEDY)
    return found


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
