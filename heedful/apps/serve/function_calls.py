"""Calls of functions in the text that a language model writes."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import NamedTuple

TAG = "<tool_call>"
"""Begin of a call in the text of Qwen's and Hermes' models; it ends with `</tool_call>`."""
_TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


class FunctionCall(NamedTuple):
    """A call of a function.

    Args:
        name: name of the function.
        arguments: its arguments, as text in JSON.
    """

    name: str
    arguments: str


def required_call(text: str, names: Collection[str]) -> FunctionCall | None:
    """Return the call that an answer is; None for one that was cut before its end.

    Args:
        text: the arguments of the only function, or an object of `name` and `arguments`.
        names: names of the functions.
    """
    if len(names) > 1:
        return _call_of(text, names)
    (name,) = names
    return FunctionCall(name, text)


def free_calls(text: str, names: Collection[str]) -> tuple[str, list[FunctionCall]]:
    """Return an answer without the calls in it, and the calls.

    An answer is a call as a whole, or has calls between tags. What names no function that is known,
    or is no JSON, stays in the text.

    Args:
        text: text of an answer.
        names: names of the functions that may be called.
    """
    if (whole := _call_of(text, names)) is not None:
        return "", [whole]
    calls: list[FunctionCall] = []

    def taken(tagged: re.Match[str]) -> str:
        call = _call_of(tagged[1], names)
        if call is None:
            return tagged[0]
        calls.append(call)
        return ""

    rest = _TAGGED.sub(taken, text)
    return (rest.strip(), calls) if calls else (text, [])


def settled(text: str, *, begun: bool) -> int:
    """Return how many characters of an unfinished answer are text, whatever follows.

    Args:
        text: characters so far that have not been sent.
        begun: True if others were sent before, so that the answer as a whole is no call.
    """
    if not begun and text.lstrip()[:1] in ("", "{"):
        return 0
    if (place := text.find(TAG)) >= 0:
        return place
    # The last characters may begin a tag.
    partial = max(n for n in range(len(TAG)) if text.endswith(TAG[:n]))
    return len(text) - partial


def _call_of(text: str, names: Collection[str]) -> FunctionCall | None:
    """Return the call that an object of `name` and `arguments` is; None for any other text."""
    try:
        call = json.loads(text)
        if not isinstance(call, dict) or call.get("name") not in names:
            return None
        arguments = call["arguments"]
        if not isinstance(arguments, dict):
            return None
        # NaN and infinity, which Python reads, are no JSON for a client.
        return FunctionCall(
            call["name"], json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        )
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
