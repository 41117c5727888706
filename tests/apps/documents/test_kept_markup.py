"""Markup of documents: every tag and every kept part exactly once, whatever a translator does."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heedful.apps.documents.formats import translate_document
from heedful.pipelines.aligned_text import copies_of

from .translators import Dictionary, Reordering, echoed, shouted

PARTS = ["%s", "{a}", "{ab}", "http://a.b/c", "a@b.de", "😀"]
WORDS = ["red ", "house ", "one, ", "end. ", "a &amp; b ", "(so) ", "VERSION ", "\n"]
SINGLES = [
    "<wbr>",
    "<!-- c -->",
    "<code>x.y</code> ",
    "<code>VERSION</code> ",
    "<code>red door</code>. ",
    "ab<code>One, end</code> ",
    "{{ x |\n y }} ",
]
LEAVES = st.sampled_from([*WORDS, *SINGLES, *(f"{part} " for part in PARTS)])
TREES = st.recursive(
    st.lists(LEAVES, max_size=5),
    lambda inner: st.lists(st.one_of(LEAVES, st.tuples(st.sampled_from("biu"), inner)), max_size=4),
    max_leaves=12,
)
TAG = re.compile(r"<[^>]*>")


def page(nodes, count):
    """Write nested elements, each with a number of its own."""
    written = ""
    for node in nodes:
        if isinstance(node, str):
            written += node
            continue
        count.append(len(count))
        written += f"<{node[0]} id={count[-1]}>{page(node[1], count)}</{node[0]}>"
    return written


def check_nested(text):
    opened = []
    for tag in TAG.findall(text):
        if tag.startswith("</"):
            assert opened.pop() == tag[2:-1]
        elif not tag.startswith(("<wbr", "<!--")):
            opened.append(re.match(r"<(\w+)", tag)[1])
    assert not opened


@settings(deadline=None, max_examples=40)
@given(nodes=TREES, seed=st.one_of(st.none(), st.integers(0, 9)), is_aligned=st.booleans())
@example(nodes=[("b", ["Open the door "]), ("i", [])], seed=None, is_aligned=True)
@example(nodes=["red ", ("b", ["red ", "%s "])], seed=None, is_aligned=True)
@example(nodes=[("b", ["red "]), ("b", ["red ", "\n"])], seed=None, is_aligned=True)
@example(nodes=["{a} ", "{ab} ", "{a} "], seed=1, is_aligned=True)
@example(nodes=["<code>red door</code>. ", "red ", "one, "], seed=3, is_aligned=True)
@example(nodes=["ab<code>One, end</code> ", "red ", "one, "], seed=2, is_aligned=True)
@example(nodes=["ab<code>One, end</code> "] * 2, seed=None, is_aligned=True)
def test_each_tag_and_part_stays_once(nodes, seed, is_aligned):
    source = f"<p>{page(nodes, [])}</p>"
    translator = Reordering(seed, is_aligned=is_aligned)
    found = translate_document(source.encode(), translator, format="html").decode()
    assert Counter(TAG.findall(found)) == Counter(TAG.findall(source))
    check_nested(found)
    if is_aligned:  # nor is any other word lost or doubled
        letters = [Counter(TAG.sub("", text).casefold().split()) for text in (found, source)]
        assert Counter("".join(letters[0].elements())) == Counter("".join(letters[1].elements()))
        before, after = copies_of(set(PARTS), source, found)
        assert {part: len(before[part]) for part in PARTS} == {
            part: len(after[part]) for part in PARTS
        }


@pytest.mark.parametrize(
    ("format", "around"),
    [("html", "<P>%s</P>"), ("markdown", "%s"), ("yaml", "A: |\n  %s"), ("yaml", "A: >\n  %s")],
)
def test_placeholders_over_two_lines_stay(format, around):
    source = around % 'So {{ a.b |\n  where: "c" }} is {% d\n  e="f" %} here.'
    found = shouted(source, format)
    assert found == source.replace("So", "SO").replace("is", "IS").replace("here.", "HERE.")


def test_placeholders_of_plain_text_stay():
    assert shouted("See %d or {a.b} at x@y.org\n", "text") == "SEE %d OR {a.b} AT x@y.org\n"


@pytest.mark.parametrize(
    "text", ["<p><b>Open it</b><i></i></p>", "<p><i></i><b>A b</b><u></u><i> </i></p>"]
)
def test_empty_elements_beside_others_stay(text):
    assert echoed(text.encode(), "html").decode() == text
    assert shouted(text, "html").casefold() == text.casefold()


@pytest.mark.parametrize(
    ("text", "translation", "links", "found"),
    [
        (
            "A version: `VERSION` in `lib/VERSION.rb`.",
            "In lib/VERSION.rb eine Version: VERSION.",
            (3, 4, 0, 1, 2),
            "In `lib/VERSION.rb` eine Version: `VERSION`.",
        ),
        (
            "`name` or `full_name`",
            "full_name oder name",
            (2, 1, 0),
            "`full_name` oder `name`",
        ),
        (  # one is lost: it stands beside its neighbour, set apart
            "`name` or `full_name`",
            "oder full_name",
            (1, 2),
            "`name` oder `full_name`",
        ),
    ],
)
def test_parts_inside_others_are_not_taken_for_them(text, translation, links, found):
    read = text.replace("`", "")
    translator = Dictionary({read: (translation, links)})
    assert translate_document(text.encode(), translator, format="markdown").decode() == found
