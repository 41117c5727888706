"""Every flag and every setting has a help text that stands on its own."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from functools import cache

import pydantic
import pytest

from heedful.cli.main import VERBS
from heedful.cli.parser import build_app, print_help
from heedful.data.corpus_spec import CorpusSpec
from heedful.train.run_settings import RunSettings

FEWEST_WORDS = 3

OPENINGS = re.compile(
    # prepositions
    r"(about|above|across|after|against|along|among|around|at|before|behind|below|beneath|besides?"
    r"|between|beyond|by|despite|during|except|for|from|in|inside|into|like|near|of|off|on|onto|out"
    r"|outside|over|past|per|since|than|through|throughout|till|to|towards?|under|until|up|upon"
    # words that refer to something outside the text
    r"|with|within|without|its?|such|that|their|them|these|they|this|those"
    # conjunctions and relative words
    r"|and|as|because|but|how|however|if|or|so|though|what|whatever|when|whenever|where|wherever"
    r"|whether|which|whichever|while|who|whom|whose|why)\b",
    re.IGNORECASE,
)
ENDINGS = re.compile(r"\b(at|besides?|by|for|from|into|near|of|onto|than|to|with)$")


@cache
def flags_of_verb(verb: str) -> tuple[tuple[str, str], ...]:
    """The name and the help of every flag that the help of a verb shows."""
    app = build_app(verb)
    for word in verb.split():
        app = app[word]
    arguments = app.assemble_argument_collection(parse_docstring=True)
    return tuple((each.names[0], each.parameter.help or "") for each in arguments if each.show)


def settings_below(
    settings: type[pydantic.BaseModel], path: tuple[str, ...] = ()
) -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the description of every setting that is no section."""
    for name, field in settings.model_fields.items():
        sections = [
            kind
            for kind in (field.annotation, *typing.get_args(field.annotation))
            if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)
        ]
        if sections:
            yield from settings_below(sections[0], (*path, name))
        else:
            yield ".".join((*path, name)), field.description or ""


def fault(text: str) -> str | None:
    """Return the reason why a text explains nothing, or None."""
    sentence = re.sub(r"\[default: .*?\]$", "", text).strip(" .")
    if len(sentence.split()) < FEWEST_WORDS:
        return f"fewer than {FEWEST_WORDS} words"
    if not sentence[0].isalpha() or OPENINGS.match(sentence):
        return "begins with neither a noun nor a verb"
    if ENDINGS.search(sentence):
        return "ends with a preposition"
    return None


def faults(texts: Iterator[tuple[str, str]] | tuple[tuple[str, str], ...]) -> str:
    found = [(name, fault(text), text) for name, text in texts]
    return "\n".join(f"{name}: {reason}: {text}" for name, reason, text in found if reason)


@pytest.mark.parametrize("verb", VERBS)
def test_every_flag_is_explained(verb: str) -> None:
    assert not faults(flags_of_verb(verb))


@pytest.mark.parametrize("verb", VERBS)
def test_no_two_flags_of_a_verb_share_a_text(verb: str) -> None:
    # the corpora of training and validation have the same settings, under two headings
    texts = [text for name, text in flags_of_verb(verb) if not name.startswith("--data.valid.")]
    assert len(texts) == len(set(texts)), sorted(t for t in set(texts) if texts.count(t) > 1)


@pytest.mark.parametrize("verb", VERBS)
def test_every_text_is_shown(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    print_help(verb)
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    missing = [
        name
        for name, text in flags_of_verb(verb)
        if " ".join(text.replace("`", "").split()) not in shown
    ]
    assert not missing
    assert "Args:" not in shown


def test_every_setting_of_a_run_is_explained() -> None:
    assert not faults(settings_below(RunSettings))
    assert not faults(settings_below(CorpusSpec))


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_summed_up_in_a_sentence(verb: str) -> None:
    summary = VERBS[verb]
    assert fault(summary) is None
    assert summary[0].isupper()
    assert summary.endswith(".")


@pytest.mark.parametrize(
    "text",
    ["", "Seed.", "of the draws", "what is left", "3 or more of them", "device that it runs with"],
)
def test_poor_texts_are_found(text: str) -> None:
    assert fault(text)
