"""Conversations as text, by a chat template as Hugging Face has them, and as tokens.

A template is Jinja in a sandbox. It gets `messages`, `add_generation_prompt`, and the begin and end
tokens, for which one character each stands that no text may hold.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from heedful.errors import DataError
from heedful.text.tokenizer import TextTokenizer

if TYPE_CHECKING:
    from heedful.text.template_sandbox import BoundedTemplate

BOS, EOS = "\ufdd0", "\ufdd1"
"""Characters for the begin and end tokens; Unicode reserves them for uses within a program."""

DEFAULT_TEMPLATE = """\
{%- for message in messages %}
{{- message.role | capitalize }}:{{ '\\n' }}{{ message.content | trim }}
{%- if message.role == 'assistant' %}{{ eos_token }}{% endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}Assistant:{{ '\\n' }}{% endif %}
"""
"""Template of a model that has none: for each turn a line with its role, and its text."""

ROLES = ("system", "developer", "user", "assistant", "tool")

REMEDY = (
    'Each line must be an object like {"messages": [{"role": "user", "content": "…"}, {"role": '
    '"assistant", "content": "…"}]} or {"prompt": "…", "answer": "…"}'
)

Messages = Sequence[Mapping[str, Any]]


class ChatPrompt(str):
    """A text made by a template, whose `BOS` and `EOS` are tokens."""


class ChatTemplate:
    """A template of conversations.

    Args:
        source: Jinja template; the default one if None.
        where: name of its file, for messages.
    """

    def __init__(self, source: str | None = None, where: str = "chat template") -> None:
        self.source = DEFAULT_TEMPLATE if source is None else source
        self._where = where

    @functools.cached_property
    def _template(self) -> BoundedTemplate:
        # Imported on use: few runs and models have conversations.
        from heedful.text.template_sandbox import BoundedTemplate

        return BoundedTemplate(self.source, self._where)

    def prompt(self, messages: Messages, tools: Sequence[Mapping[str, Any]] = ()) -> ChatPrompt:
        """Return the text after which the model answers.

        Args:
            messages: conversation.
            tools: functions that an answer may call, in OpenAI's form.

        Raises:
            DataError: when it is no template, with the line, or refuses the messages.
        """
        return ChatPrompt(self._render(messages, answers=True, tools=tools))

    def with_answers(self, messages: Messages, where: str) -> tuple[str, list[bool]]:
        """Return the text of a conversation, and which of its characters are of an answer.

        An answer reaches from the text after which the model begins to the end of its turn.

        Args:
            messages: conversation with at least one answer.
            where: file and line, for messages.

        Raises:
            DataError: when the template refuses the messages, or writes a turn in another way once
                others follow it.
        """
        try:
            whole = self._render(messages, answers=False)
            own = [False] * len(whole)
            for number, message in enumerate(messages):
                if message["role"] != "assistant":
                    continue
                before = self._render(messages[:number], answers=True)
                after = self._render(messages[: number + 1], answers=False)
                if not (after.startswith(before) and whole.startswith(after)):
                    raise DataError(
                        f"The chat template writes turn {number + 1} otherwise once it is "
                        "answered or followed by another, so its answer cannot be learned",
                        remedy="Cut the conversation after its first answer, or give another "
                        "template by --data.chat-template",
                    )
                # White space after the end of a turn belongs to the next one.
                end = max(len(after.rstrip()), len(before))
                own[len(before) : end] = [True] * (end - len(before))
        except DataError as error:
            error.where = f"{where}, {error.where}" if error.where else where
            raise
        return whole, own

    def _render(
        self, messages: Messages, *, answers: bool, tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        return self._template.render(
            # Templates ask whether `tools` is none, as `transformers` passes it.
            tools=[dict(each) for each in tools] or None,
            messages=[dict(each) for each in messages],
            add_generation_prompt=answers,
            bos_token=BOS,
            eos_token=EOS,
        )


def encode_marked(
    tokenizer: TextTokenizer, text: str, own: Sequence[bool]
) -> tuple[list[int], list[bool]]:
    """Return the ids of a template's text without a begin token, and which are of an answer.

    Args:
        tokenizer: tokenizer of the model.
        text: text with `BOS` and `EOS`.
        own: True for each character of an answer.
    """
    ids: list[int] = []
    learned: list[bool] = []
    # Whoever takes the ids puts the begin token before them, as before any text.
    start = 1 if text.startswith(BOS) else 0
    while start < len(text):
        if text[start] in (BOS, EOS):
            ids.append(tokenizer.bos if text[start] == BOS else tokenizer.eos)
            learned.append(own[start])
            start += 1
            continue
        found = (place for mark in (BOS, EOS) if (place := text.find(mark, start)) >= 0)
        end = min(found, default=len(text))
        more, spans = tokenizer.encode_spans(text[start:end])
        ids += more
        # By the last character: a token may begin with the space before an answer.
        learned += [own[start + max(last - 1, 0)] for _, last in spans]
        start = end
    return ids, learned


def encode_whole(
    tokenizer: TextTokenizer, text: str, own: Sequence[bool]
) -> tuple[list[int], list[bool]]:
    """Return the ids of a conversation between its begin and end token, and which are learned."""
    text = text.rstrip()
    ends = bool(text) and own[len(text) - 1]
    # A template may write the end itself.
    ids, learned = encode_marked(tokenizer, text.removesuffix(EOS), own)
    return [tokenizer.bos, *ids, tokenizer.eos], [False, *learned, ends]


def check_messages(item: Any, where: str) -> list[dict[str, str]]:
    """Return the messages of a line: a list of them, an object with it, or prompt and answer.

    Args:
        item: JSON of the line.
        where: file and line, for messages.

    Raises:
        DataError: when it is no conversation.
    """
    if isinstance(item, dict) and "messages" not in item and "prompt" in item:
        item = [
            {"role": role, "content": item[name]}
            for role, name in (("user", "prompt"), ("assistant", "answer"))
            if name in item
        ]
    several = item.get("messages") if isinstance(item, dict) else item
    if not isinstance(several, list) or not several:
        raise DataError("There are no messages", where=where, remedy=REMEDY)
    return [_checked(each, where, number) for number, each in enumerate(several, start=1)]


def _checked(message: Any, where: str, number: int) -> dict[str, str]:
    role = message.get("role") if isinstance(message, dict) else None
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):  # parts, of which only those of text are read
        parts: list[Any] = [e.get("text") if isinstance(e, dict) else None for e in content]
        content = "".join(parts) if all(isinstance(each, str) for each in parts) else None
    if role not in ROLES or not isinstance(content, str):
        problem = f"role {role!r}" if role not in ROLES else "no text as its content"
        raise DataError(f"Message {number} has {problem}", where=where, remedy=REMEDY)
    if BOS in content or EOS in content:
        raise DataError(
            f"Message {number} holds a character that Unicode reserves for programs",
            where=where,
            remedy="Remove U+FDD0 and U+FDD1",
        )
    return {"role": role, "content": content}
