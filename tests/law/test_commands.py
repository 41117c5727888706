"""Every command, flag and make target that the pages show is one that exists."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from heedful.cli.main import VERBS, find_verb, normalize
from heedful.cli.parser import build_app, function_behind

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]

# Flags of other programs, and the form of a flag in general.
FOREIGN_FLAGS = {"--section.key"}
PLACES = {"heedful VERB --help"}


def shown_commands(text: str) -> Iterator[str]:
    """Commands in shell blocks and in code spans, one program each."""
    lines = [
        line
        for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines()
    ]
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
    for line in [*lines, *spans]:
        without_comment = re.sub(r"(^|\s)#.*", "", line)
        for part in without_comment.split("|"):
            if part.strip() and part.strip() not in PLACES:
                yield part.strip()


def examples_of(verb: str) -> list[str]:
    """Commands in the example blocks of a verb's help."""
    function = function_behind(verb)
    lines = [line.strip() for line in inspect.getdoc(function).splitlines()]
    found = [
        line.split("|")[-1].strip() for line in lines if re.match(r"(echo .*\| *)?heedful ", line)
    ]
    return found + re.findall(r"Example: `([^`]+)`", inspect.getdoc(function))


def parse(command: str) -> None:
    words = normalize(shlex.split(command)[1:])
    if words in ([], ["--help"], ["--version"]):
        return
    build_app(find_verb(words)).parse_args(words, exit_on_error=False, print_error=False)


def heedful_commands() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for command in shown_commands(page.read_text(encoding="utf-8")):
            name_only = re.fullmatch(r"heedful(( [a-z]+)*)", command)
            if name_only and name_only[1].strip() in {"", *VERBS}:
                continue  # a mention, not something to type
            if re.match(r"heedful( |$)", command) and "…" not in command:
                found.append((str(page.relative_to(ROOT)), command))
    return found


@pytest.mark.parametrize(("page", "command"), heedful_commands())
def test_shown_commands_are_understood(page: str, command: str) -> None:
    parse(command)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_teaches_by_an_example(verb: str) -> None:
    examples = examples_of(verb)
    assert examples, f"the help of {verb} has no example"
    for example in examples:
        parse(example)


@pytest.mark.parametrize("verb", VERBS)
def test_summaries_are_the_verbs_own(verb: str) -> None:
    function = function_behind(verb)
    assert inspect.getdoc(function).splitlines()[0] == VERBS[verb]


def test_shown_flags_exist() -> None:
    known = set(FOREIGN_FLAGS)
    for verb in VERBS:
        app = build_app(verb)
        for word in verb.split():
            app = app[word]
        arguments = app.assemble_argument_collection()
        known |= {name for argument in arguments for name in argument.names}
    known |= {"--help", "--version"}
    wrong = []
    for page in PAGES:
        for span in re.findall(r"(?<!`)`(--[^`\n]+)`(?!`)", page.read_text(encoding="utf-8")):
            flag = normalize([shlex.split(span)[0]])[0]
            if flag not in known:
                wrong.append(f"{page.relative_to(ROOT)}: {flag}")
    assert not wrong, "\n".join(wrong)


def test_shown_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for page in PAGES:
        for command in shown_commands(page.read_text(encoding="utf-8")):
            words = command.split()
            if words[0] == "make":
                wanted = [word for word in words[1:] if "=" not in word and word != "…"]
                assert set(wanted) <= targets, f"{page}: {command}"
