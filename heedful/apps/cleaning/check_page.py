"""The HTML report of a checked corpus: one file without scripts, which needs no network."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Sequence

from heedful.apps.cleaning.check_report import CheckedCorpus, PairExample, RuleCount
from heedful.apps.cleaning.corpus_statistics import SideStatistics
from heedful.apps.html_page import card, document, section

_STYLE = """
:root { color-scheme: light dark; --ink: #222; --soft: #5c5c5c; --line: #dddad2; --mark: #0f3781;
  --back: #f8f7f4; --card: #fff; --bar: #7d97cd }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e6e1; --soft: #aaa69e; --line: #3d3b37;
  --mark: #a9c0f5; --back: #1b1a18; --card: #262522; --bar: #4d68a3 } }
* { box-sizing: border-box }
body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.5 system-ui, sans-serif }
main { max-width: 72rem; margin: 0 auto; padding: 2rem 1rem 4rem }
h1 { font-size: 1.6rem; margin: 0; overflow-wrap: anywhere }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem }
h3 { font-size: 1rem; margin: 1rem 0 .3rem }
p { margin: .3rem 0; color: var(--soft); max-width: 50rem }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: .6rem 1rem; margin: .6rem 0; overflow-x: auto }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 0 1rem }
table { border-collapse: collapse; font-size: .9rem; width: 100% }
th, td { padding: .3rem .6rem; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line) }
th { color: var(--soft); font-weight: 500 }
tr:last-child > td { border-bottom: 0 }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
td.text { overflow-wrap: anywhere; min-width: 12rem; max-width: 26rem }
td.bar { width: 30%; min-width: 5rem }
td.bar div { background: var(--bar); height: .8rem; margin-top: .3rem; border-radius: 2px }
code { color: var(--mark) }
summary { cursor: pointer; color: var(--soft) }
.sign { color: #b3261e; border: 1px solid; border-radius: 3px; font-size: .75em; padding: 0 .2em }
@media (prefers-color-scheme: dark) { .sign { color: #f2b8b5 } }
"""

# The policy forbids scripts and requests: the page shows texts that strangers wrote.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

# Control, format, private, unassigned and surrogate characters are invisible.
_UNSEEN = {"Cc", "Cf", "Co", "Cn", "Cs"}


def page_of(checked: CheckedCorpus) -> str:
    """Render the report of a checked corpus as HTML.

    Args:
        checked: report to render.
    """
    parts = [_summary(checked), _rules(checked), _worst(checked), _targets(checked)]
    sides = "".join(
        f'<div class="card"><h3>{html.escape(side)}</h3>{_statistics(each)}</div>'
        for side, each in checked.statistics.items()
    )
    # Statistics come last, since users act on rules and examples.
    parts.append(section("Words and characters", f'<div class="sides">{sides}</div>', _COUNTED))
    limits = checked.settings.plain().items()
    rows = [_row(f"<code>{html.escape(n)}</code>", html.escape(str(v))) for n, v in limits]
    parts.append(section("Limits", card(_table([], rows))))
    # File names are escaped like texts: they may hold any character but a slash.
    title = "Check of " + " and ".join(checked.files)
    return document(title, "\n".join(parts), style=_STYLE, policy=_POLICY)


_COUNTED = "Of all pairs that could be read. Words are separated by white space."


def _summary(checked: CheckedCorpus) -> str:
    share = checked.removed / checked.pairs
    languages = " to ".join(checked.languages) if checked.languages else "not judged"
    lines = [
        f"{checked.pairs:,} pairs: {checked.kept:,} would stay, {checked.removed:,} ({share:.2%}) "
        "would go.",
        f"Languages: {languages}.",
        *(f"{path}: {encoding}." for path, encoding in checked.files.items()),
    ]
    if checked.known_targets is not None:
        lines.append(f"{checked.known_targets:,} pairs have a target that is in the test data.")
    return "\n".join(f"<p>{html.escape(line)}</p>" for line in lines)


def _rules(checked: CheckedCorpus) -> str:
    # Bars are relative to the most frequent rule, not to the corpus: rare rules stay visible.
    most = max((rule.pairs for rule in checked.rules), default=0)
    rows = [
        _row(
            f"<code>{rule.rule}</code>",
            html.escape(rule.about),
            rule.pairs,
            rule.removed,
            _bar(rule.pairs, most),
        )
        # Rules that found nothing are also listed, to show that they were applied.
        for rule in checked.rules
    ]
    head = ["rule", "finds", "=pairs", "=would go", ""]
    note = "A pair goes by the first rule that finds it."
    if checked.not_applied:
        note += f" Not applied: {', '.join(checked.not_applied)}."
    examples = "".join(_rule_examples(rule) for rule in checked.rules if rule.examples)
    return section("Rules", card(_table(head, rows)) + examples, note)


def _rule_examples(rule: RuleCount) -> str:
    count = f"{rule.pairs:,} pair{'s' * (rule.pairs != 1)}"
    summary = f"<summary><code>{rule.rule}</code>: the first of {count}</summary>"
    return f'<details class="card">{summary}{_pairs(rule.examples)}</details>'


def _worst(checked: CheckedCorpus) -> str:
    # Repeats and leaks are certain, not doubtful, and would fill the list.
    note = (
        "The most doubtful pairs by their characters, lengths, copies, numbers, languages and the "
        "model; repeats and leaks do not count. Those without a reason would stay."
    )
    return section(f"The worst {len(checked.worst)} pairs", card(_pairs(checked.worst)), note)


def _targets(checked: CheckedCorpus) -> str:
    bins = checked.sources["targets_of_a_source"]
    most = max(bins.values(), default=0)
    rows = [_row(name, count, _bar(count, most)) for name, count in bins.items()]
    content = card(_table(["different targets", "=sources", ""], rows))
    if checked.most_targets:
        rows = [_row(n, _text(source)) for source, n in checked.most_targets]
        content += card(_table(["=targets", "source"], rows))
    note = f"{checked.sources['sources']:,} different sources, of pairs without faults."
    return section("Sources with many targets", content, note)


def _statistics(side: SideStatistics) -> str:
    about = " (estimated)" if side.is_estimated else ""
    facts = {
        "words": f"{side.words:,}",
        "different words": f"{side.different_words:,}{about}",
        "characters": f"{side.characters:,}",
        "different characters": f"{side.different_characters:,}",
        **{f"words of a text, {name}": f"{n:,}" for name, n in side.lengths.items()},
        **{f"share of the commonest {n:,}": f"{share:.1%}" for n, share in side.shares.items()},
    }
    most, rare = max(side.histogram.values()), side.rare_characters.items()
    lows = list(side.histogram)
    # Each bin ends one word before the next begins; the last bin has no end.
    highs = [*(low - 1 for low in lows[1:]), None]
    names = [_range(low, high) for low, high in zip(lows, highs, strict=True)]
    counts = zip(names, side.histogram.values(), strict=True)
    scripts, words = side.scripts.items(), side.top_words.items()
    return (
        _table([], [_row(name, f"={value}") for name, value in facts.items()])
        + "<h3>Lengths</h3>"
        + _table(["words", "=texts", ""], [_row(n, c, _bar(c, most)) for n, c in counts])
        + "<h3>Characters</h3>"
        + _table(["script or kind", "="], [_row(html.escape(n), count) for n, count in scripts])
        + _folded("the commonest words", [_row(_text(w), n) for w, n in words])
        + _folded("characters that occur 5 times or less", [_row(c, _text(n)) for c, n in rare])
    )


def _range(low: int, high: int | None) -> str:
    return f"{low} or more" if high is None else str(low) if low == high else f"{low}-{high}"


def _folded(title: str, rows: Sequence[str]) -> str:
    if not rows:
        return ""
    return f"<details><summary>{title}</summary>{_table([], rows)}</details>"


def _pairs(pairs: Iterable[PairExample]) -> str:
    rows = [
        _row(
            pair.line,
            _text(pair.source),
            _text(pair.target),
            "<br>".join(
                f"<code>{rule}</code> {_visible(detail)}" for rule, detail in pair.reasons.items()
            ),
        )
        for pair in pairs
    ]
    return _table(["=line", "source", "target", "reasons"], rows)


def _table(head: Sequence[str], rows: Iterable[str]) -> str:
    """Render a table; a heading that begins with "=" marks a column of numbers."""
    cells = [
        f'<th class="number">{name[1:]}</th>' if name.startswith("=") else f"<th>{name}</th>"
        for name in head
    ]
    first = f"<tr>{''.join(cells)}</tr>" if cells else ""
    return f"<table>{first}{''.join(rows)}</table>"


def _row(*cells: str | int) -> str:
    """Render a row.

    Args:
        *cells: integers, complete cells, HTML, or "=" and a formatted number.
    """
    result = []
    for cell in cells:
        if isinstance(cell, int):
            result.append(f'<td class="number">{cell:,}</td>')
        elif cell.startswith("<td"):
            result.append(cell)
        elif cell.startswith("="):
            result.append(f'<td class="number">{cell[1:]}</td>')
        else:
            result.append(f"<td>{cell}</td>")
    return f"<tr>{''.join(result)}</tr>"


def _bar(count: int, most: int) -> str:
    width = 100 * count / most if most else 0  # percent of the column
    return f'<td class="bar"><div style="width: {width:.1f}%"></div></td>'


def _text(text: str) -> str:
    """Render a cell with a text of the corpus."""
    # Arabic and Hebrew run from right to left in a page that runs from left to right.
    return f'<td class="text" dir="auto">{_visible(text)}</td>'


def _visible(text: str) -> str:
    """Escape a text for HTML, with the code points of invisible characters."""
    return "".join(
        f'<span class="sign">{ord(c):04X}</span>'
        if unicodedata.category(c) in _UNSEEN
        else html.escape(c)
        for c in text
    )
