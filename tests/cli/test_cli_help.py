"""How the help of a verb reads."""

from __future__ import annotations

import pytest

from heedful.cli.main import VERBS, main
from heedful.cli.overview import inline, prose


def test_paragraphs_run_on_and_blocks_stay():
    text = "One line\nand `more --of it`.\n\nFor example:\n\n"
    text += "    heedful a\n      heedful b | c\n\nEnd."
    assert prose(text).plain == (
        "One line and more --of it.\n\nFor example:\n\n  heedful a\n    heedful b | c\n\nEnd.\n"
    )


def test_code_is_told_by_colour():
    found = inline("`a` and b, not `open")
    assert found.plain == "a and b, not `open"
    assert [found.plain[span.start : span.end] for span in found.spans] == ["a"]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb, capsys):
    assert main([*verb.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"Usage: heedful {verb} ")
    assert "`" not in shown
    assert "--json" in shown


def test_flags_say_what_may_be_chosen_and_what_must_be_given(capsys):
    main(["train", "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "created if missing. [required]" in shown
    assert "[default: inverse_sqrt] [choices: inverse_sqrt, cosine, linear, constant]" in shown


def test_a_switch_that_is_off_has_neither_a_default_nor_a_negative(capsys):
    main(["translate", "--help"])
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--capitals Translate sentences" in shown
    assert "--no-capitals" not in shown
    assert "--no-copy-unknown" in shown  # unset, it is as the model states
    assert "[default: ]" not in shown
    assert "[default: False]" not in shown
    assert main(["translate", "run", "--no-capitals"]) == 2


def test_help_is_found_before_and_after_the_verb(capsys):
    shown = []
    for words in (["info", "-h"], ["--help", "info"], ["info", "--json", "--help", "x"]):
        assert main(words) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0].startswith("Usage: heedful info ")
    assert shown[0] == shown[1] == shown[2]


def test_words_that_are_no_verb(capsys):
    for words in (["--foo"], ["--"], ["--", "train"], ["nonsense", "--help"]):
        assert main(words) == 2
        assert f"There is no command {words[0]!r}" in capsys.readouterr().err
    assert main(["-h", "--foo"]) == 0
    assert capsys.readouterr().out.startswith("Usage: heedful COMMAND\n")
