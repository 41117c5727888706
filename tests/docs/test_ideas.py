"""The pages of docs/ideas are executed: what they show is what the code prints.

Conventions of a page:
- its ```python blocks run in order, in one namespace;
- what a block prints stands in a ```text block right after it, to the character;
- a number in the prose that looks computed (a decimal, thousands separators, millions, powers of
  ten) must be one that a block of the page holds, rounded as it is in the prose. Wrong figures
  that are quoted stand in <del>…</del>.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest
import torch

IDEAS = Path(__file__).parents[2] / "docs" / "ideas"
PAGES = sorted(IDEAS.glob("*.md"))
PARTS = IDEAS.parent / "guides" / "parts-in-your-model.md"
"""The guide to `heedful.nn`, executed like a page of ideas."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DIGITS = r"(?<![\w.,])\d[\d,_]*(?:\.\d+)?"
_SCALE = r"(?:e[+-]?\d+|\s(?:million|billion)\b|\s×\s10[⁰¹²³⁴⁵⁶⁷⁸⁹]+)?"
_NUMBER = re.compile(_DIGITS + _SCALE)
_POWERS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")


@dataclass(frozen=True)
class Example:
    """A python block, the line it begins on, and the output the page shows for it."""

    code: str
    line: int
    shown: str | None


def examples(text: str) -> Iterator[Example]:
    blocks = list(_FENCE.finditer(text))
    for number, block in enumerate(blocks):
        if block[1] != "python":
            continue
        follower = blocks[number + 1] if number + 1 < len(blocks) else None
        shown = None
        if follower is not None and follower[1] == "text":
            between = text[block.end() : follower.start()]
            shown = follower[2] if not between.strip() else None
        yield Example(block[2], text.count("\n", 0, block.start()) + 2, shown)


def run_page(text: str) -> list[str]:
    """Run a page; what is wrong with it, a message for each thing."""
    namespace: dict[str, Any] = {}
    problems = []
    torch.manual_seed(0)
    for example in examples(text):
        printed = io.StringIO()
        # Blank lines in front, so that a traceback names the line of the page.
        source = "\n" * (example.line - 1) + example.code
        with contextlib.redirect_stdout(printed):
            exec(compile(source, "<page>", "exec"), namespace)
        got = _stripped(printed.getvalue())
        if got != _stripped(example.shown or ""):
            problems.append(
                f"line {example.line}: printed\n{got}\nbut the page shows\n{example.shown}"
            )
    return problems


def unsupported_numbers(text: str) -> list[str]:
    """Numbers of the prose that no block of the page holds."""
    blocks = [block[2] for block in _FENCE.finditer(text)]
    held = [_value(number) for block in blocks for number in _NUMBER.findall(block)]
    prose = re.sub(r"<del>.*?</del>", "", _FENCE.sub("", text), flags=re.DOTALL)
    prose = re.sub(r"\]\([^)]*\)", "]", prose)
    computed = [n.rstrip(",") for n in _NUMBER.findall(prose) if re.search(r"[.,\s]\S", n)]
    return [n for n in computed if not any(_rounds_to(h, _value(n)) for h in held)]


def _stripped(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def _value(written: str) -> Decimal:
    """The number; its last digit says to what it is rounded."""
    digits, _, scale = re.sub(r"[,_]", "", written).replace("\n", " ").partition(" ")
    if scale.startswith("×"):
        return Decimal(digits).scaleb(int(scale.removeprefix("× 10").translate(_POWERS)))
    return Decimal(digits).scaleb({"": 0, "million": 6, "billion": 9}[scale])


def _rounds_to(held: Decimal, written: Decimal) -> bool:
    return any(
        held.quantize(written, rounding=way) == written for way in (ROUND_HALF_EVEN, ROUND_HALF_UP)
    )


@pytest.mark.parametrize("page", [*PAGES, PARTS], ids=lambda page: page.stem)
def test_page_prints_what_it_shows(page: Path) -> None:
    problems = run_page(page.read_text(encoding="utf-8"))
    assert not problems, "\n\n".join(problems)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_numbers_in_the_prose_come_from_a_block(page: Path) -> None:
    assert not unsupported_numbers(page.read_text(encoding="utf-8"))


def test_every_page_is_linked_from_the_index() -> None:
    linked = set(re.findall(r"\]\((\w[\w-]*\.md)\)", (IDEAS / "index.md").read_text("utf-8")))
    assert linked == {page.name for page in PAGES} - {"index.md"}


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([\w./-]+\.md)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_changed_output_is_noticed(page: Path) -> None:
    """Were the last digit of any output wrong, the page would fail."""
    text = page.read_text(encoding="utf-8")
    shown = [e.shown for e in examples(text) if e.shown and re.search(r"\d", e.shown)]
    if not shown:
        pytest.skip("no numbers on this page")
    last = max(i for i, c in enumerate(shown[-1]) if c.isdigit())
    wrong = shown[-1][:last] + str((int(shown[-1][last]) + 1) % 10) + shown[-1][last + 1 :]
    assert len(run_page(text.replace(shown[-1], wrong))) == 1


PAGE = """# Page

```python
x = 2
print(f"{x / 3:.3f}")
```

```text
{shown}
```

Two thirds are {prose}, not <del>0.61</del>.
"""


@pytest.mark.parametrize(
    ("shown", "prose", "faults"),
    [("0.667", "0.67", 0), ("0.666", "0.67", 1), ("0.667", "0.66", 1), ("", "0.67", 2)],
)
def test_the_harness_itself(shown: str, prose: str, faults: int) -> None:
    text = PAGE.replace("{shown}", shown).replace("{prose}", prose)
    assert len(run_page(text)) + len(unsupported_numbers(text)) == faults


def test_a_block_that_prints_unshown_output_is_noticed() -> None:
    assert len(run_page('```python\nprint("hello")\n```\n\nprose\n\n```text\nhello\n```\n')) == 1
