"""The post-processor of a tokenizer.json taken apart: what stands around a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from heedful.errors import ModelError
from heedful.text.imported import Frame


def read_frame(processor: Mapping[str, Any] | None, *, where: str) -> Frame:
    """What a post-processor puts around a text, and between two.

    Args:
        processor: as the `tokenizers` library writes it; None for none.
        where: the file it is from, for the error message.

    Raises:
        ModelError: when it does something else.
    """
    if processor is None:
        return Frame()
    kind = processor.get("type")
    if kind == "ByteLevel":  # it only moves offsets
        return Frame()
    if kind == "Sequence":
        frames = [read_frame(part, where=where) for part in processor["processors"]]
        telling = [frame for frame in frames if frame != Frame()]
        if len(telling) > 1:
            raise _unknown("several templates", where)
        return telling[0] if telling else Frame()
    if kind in ("BertProcessing", "RobertaProcessing"):
        sep, cls = (int(processor[name][1]) for name in ("sep", "cls"))
        between = (sep,) if kind == "BertProcessing" else (sep, sep)
        return Frame((cls,), (sep,), between)
    if kind == "TemplateProcessing":
        return _from_template(processor, where)
    raise _unknown(f"type {kind!r}", where)


def _from_template(processor: Mapping[str, Any], where: str) -> Frame:
    single = _parts(processor["single"], processor["special_tokens"])
    pair = _parts(processor["pair"], processor["special_tokens"])
    if len(single) != 2:
        raise _unknown("a template that holds a text more or less than once", where)
    first, last = single
    # A pair that begins or ends otherwise than a single text is no such frame.
    fits = len(pair) == 3 and (pair[0], pair[2]) == (first, last)
    return Frame(first, last, pair[1] if fits else None)


def _parts(
    template: Sequence[Mapping[str, Any]], tokens: Mapping[str, Any]
) -> list[tuple[int, ...]]:
    """The ids before, between and after the texts of a template."""
    parts: list[tuple[int, ...]] = [()]
    for item in template:
        if "Sequence" in item:
            parts.append(())
        else:
            parts[-1] += tuple(tokens[item["SpecialToken"]["id"]]["ids"])
    return parts


def _unknown(what: str, where: str) -> ModelError:
    return ModelError(
        f"The tokenizer's post-processor cannot be imported: {what}",
        where=where,
        remedy="Frames of special tokens before, between and after texts can be",
    )
