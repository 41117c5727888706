"""A model's outputs for the same sentence at each validation, and the changed words."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from heedful.evaluate.corpus_metrics import build_metric

Samples = Sequence[tuple[int, Sequence[Mapping[str, str]]]]
"""Step and texts of each validation: `source`, `reference` and `text`."""


def history(samples: Mapping[str, Samples], sentence: int) -> dict[str, Any]:
    """Return the sentences, and the texts of each run for one of them by step.

    Args:
        samples: samples by run.
        sentence: index of the sentence; larger indices select the last sentence, and negative ones
            the sentence with the most different translations, of these the longest.
    """
    sentences: dict[str, str] = {}
    for steps in samples.values():
        for _, each in steps:
            for sample in each:
                sentences.setdefault(sample["source"], sample["reference"])
    sources = list(sentences)
    if not sources:
        return {"sentences": [], "source": None, "reference": None, "runs": []}
    source = sources[min(sentence, len(sources) - 1)] if sentence >= 0 else _most_changed(samples)
    runs = [
        {"name": name, "texts": _texts(steps, source, sentences[source])}
        for name, steps in samples.items()
    ]
    return {
        "sentences": sources,
        "source": source,
        "reference": sentences[source],
        "runs": [run for run in runs if run["texts"]],
    }


def with_chrf(samples: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return samples with the chrF of each text; None without a reference."""
    metric = build_metric("chrf")
    return [
        {
            **each,
            "chrf": metric.corpus_score([each["text"]], [[each["reference"]]]).score
            if each["reference"].strip()
            else None,
        }
        for each in samples
    ]


def words_of(text: str, *, spaced: bool) -> list[str]:
    """Split a text into words with adjacent spaces, or into characters.

    Args:
        text: text to split.
        spaced: true for a language with spaces between words.
    """
    if not spaced:
        return list(text)
    return re.findall(r"\s*\S+\s*", text) or list(text)


def changed_words(before: str, text: str, *, spaced: bool = True) -> list[tuple[str, bool]]:
    """Return the words of a text, each with True if it is new.

    Args:
        before: earlier text to compare with.
        text: text to split.
        spaced: true for a language with spaces between words.
    """
    words = words_of(text, spaced=spaced)
    parts = (words_of(before, spaced=spaced), words)
    old, new = ([word.strip() or word for word in each] for each in parts)
    is_new = [True] * len(words)
    for block in difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks():
        is_new[block.b : block.b + block.size] = [False] * block.size
    return list(zip(words, is_new, strict=True))


def _most_changed(samples: Mapping[str, Samples]) -> str:
    written: dict[str, set[str]] = {}
    for steps in samples.values():
        for _, each in steps:
            for sample in each:
                written.setdefault(sample["source"], set()).add(sample["text"])
    return max(written, key=lambda source: (len(written[source]), len(source)))


def _texts(steps: Samples, source: str, reference: str) -> list[dict[str, Any]]:
    written = [
        (step, {"text": sample["text"], "reference": reference})
        for step, each in steps
        for sample in each
        if sample["source"] == source
    ]
    scored = with_chrf([sample for _, sample in written])
    spaced = any(" " in text.strip() for text in (reference, *(each["text"] for each in scored)))
    found: list[dict[str, Any]] = []
    before: str | None = None
    for (step, _), each in zip(written, scored, strict=True):
        text = each["text"]
        words = [(text, False)] if before is None else changed_words(before, text, spaced=spaced)
        found.append(
            {"step": step, "words": words, "chrf": each["chrf"], "changed": text != before}
        )
        before = text
    return found
