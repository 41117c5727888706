"""Markdown of GitHub, Pandoc, MkDocs, Hugo, Jekyll and VitePress: words change, marks stay."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import markdown
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from heedful.apps.documents.formats import open_document, translate_document

from .translators import Dictionary, Reordering, Shouting, echoed, sentences, shouted

SHOUTED = [
    # CommonMark
    ("a dog \nruns\t\nand\u00a0\nbarks\u00a0", "A DOG \nRUNS\t\nAND\u00a0\nBARKS\u00a0"),
    ("see [the dog] or\n[our\ncat][].", "SEE [THE DOG][the dog] OR\n[OUR\nCAT][our cat]."),
    ("see [`the dog`] and ![the dog]", "SEE [`the dog`] AND ![the dog]"),
    ("one.<br>two <kbd>ctrl</kbd> `x`<br/>", "ONE.<br>TWO <kbd>ctrl</kbd> `x`<br/>"),
    ("{a} is %{b} of ${c}, %s", "{a} IS %{b} OF ${c}, %s"),
    ("[optional] c:\\dir \\alpha a < b", "[OPTIONAL] C:\\DIR \\ALPHA A < B"),
    # GitHub
    ("> [!NOTE]\n> the dog", "> [!NOTE]\n> THE DOG"),
    ("a dog[^1] :smile: @tom", "A DOG[^1] :smile: @tom"),
    ("[^1]: a dog\n\n    and a cat", "[^1]: A DOG\n\n    AND A CAT"),
    ("is $x_1$ at $5 or $6?\n\n$$\na = b\n$$", "IS $x_1$ AT $5 OR $6?\n\n$$\na = b\n$$"),
    # Pandoc
    ("# a dog {#dog .big}", "# A DOG {#dog .big}"),
    ("a [big dog]{.big} `x`{.py} [y](z){ .b }", "A [BIG DOG]{.big} `x`{.py} [Y](z){ .b }"),
    ("a dog\n:   an animal", "A DOG\n:   AN ANIMAL"),
    ("::: warning\na dog\n:::", "::: warning\nA DOG\n:::"),
    ("says [@doe99, p. 3]^[a note] h~2~o", "SAYS [@doe99, p. 3]^[A NOTE] h~2~o"),
    # MkDocs
    ('!!! note "a dog"\n\n    it *barks*', '!!! note "A DOG"\n\n    IT *BARKS*'),
    ('=== "a tab"\n\n    - a dog\n', '=== "A TAB"\n\n    - A DOG\n'),
    ("the html\n\n*[html]: a language", "THE HTML\n\n*[html]: a language"),
    ("a ==big dog== ~no dog~ ++ctrl+c++", "A ==BIG DOG== ~NO DOG~ ++ctrl+c++"),
    ("a dog\n{: .big }\n\n--8<-- \"x.md\"", "A DOG\n{: .big }\n\n--8<-- \"x.md\""),
    ("a [dog][a.Dog] or [Dog][]", "A [DOG][a.Dog] OR [DOG][Dog]"),
    # Hugo and Jekyll
    ("{{< note >}}\na dog\n{{< /note >}}", "{{< note >}}\nA DOG\n{{< /note >}}"),
    ("+++\ntitle = 'a'\nslug = 'b'\n+++\na dog", "+++\ntitle = 'A'\nslug = 'b'\n+++\nA DOG"),
    ('{\n"t": "a",\n"title": "b"\n}\na dog', '{\n"t": "a",\n"title": "B"\n}\nA DOG'),
    ("---\nalt: a dog\ntags: [b]\n---\na dog", "---\nalt: A DOG\ntags: [b]\n---\nA DOG"),
    ('{{< img alt="a dog" id="x" >}}\n\nx', '{{< img alt="A DOG" id="x" >}}\n\nX'),
    ('see {% img x title=\'a "dog"\' %} x', 'SEE {% img x title=\'A "DOG"\' %} X'),
    ('{{</* img alt="a" */>}}\n\n```\n{{< img alt="a" >}}\n```', None),
    ("says __a dog__ to \\@tom {# x #}", "SAYS __A DOG__ TO \\@tom {# x #}"),
    ("::: list\na dog\\\n:::", "::: list\nA DOG\\\n:::"),
    ("{% code %}\na dog\n{% endcode %}\na dog", "{% code %}\na dog\n{% endcode %}\nA DOG"),
    ("the {{ page.x }} [dog]({{ s }}/a b) {% x %}", "THE {{ page.x }} [DOG]({{ s }}/a b) {% x %}"),
    ('<p>\n[a dog](http://x.y "t") `z`\n</p>', '<p>\n[A DOG](http://x.y "t") `z`\n</p>'),
    # VitePress and Docusaurus
    ("::: tip a dog {open}\nruns\n:::", "::: tip A DOG {open}\nRUNS\n:::"),
    (":::note[a dog]\nruns\n:::", ":::note[A DOG]\nRUNS\n:::"),
    ("1. <img src=a>\n   a dog", "1. <img src=a>\n   A DOG"),
    ("| a dog |\n| b |\n|---|\n| c |", "| A DOG |\n| B |\n|---|\n| C |"),
    ("import a from 'b';\n\na <X.y /> <d_g>", "import a from 'b';\n\nA <X.y /> <d_g>"),
]  # fmt: skip
DEFINITIONS = "\n\n[the dog]: http://x.y\n[our cat]: z\n"


@pytest.mark.parametrize(("page", "expected"), SHOUTED)
def test_words_change_and_marks_stay(page: str, expected: str | None) -> None:
    assert echoed((page + DEFINITIONS).encode(), "markdown") == (page + DEFINITIONS).encode()
    assert shouted(page + DEFINITIONS, "markdown") == (expected or page) + DEFINITIONS


def test_what_is_shown_to_a_translator() -> None:
    page = "a dog[^1] :smile: has $x_1$\n{{ name }}, [@doe] <code>x  y</code> {#id}"
    assert sentences(page, "markdown") == ["a dog has $x_1$ {{ name }}, x y"]


def test_what_is_left_out_is_told() -> None:
    page = "a dog\n\n> <div>a\n> cat</div>\n\n| a verse\n| of a poem\n"
    document = open_document(page.encode(), format="markdown")
    answers = Shouting().translate([s.text for s in document.sentences], alignment=True)
    assert document.write(answers) == page.replace("a dog", "A DOG").encode()
    assert document.left_out == (
        "line 3 (> <div>a > cat</div>): HTML in a quotation",
        "line 6 (| a verse | of a poem): a table or a block of lines",
    )


def test_a_translation_that_reads_otherwise_is_refused() -> None:
    """An address that nobody wrote would become a link, so the source stays, and this is told."""
    page = "open *the* door\n\nnow"
    known = {"open the door": ("öffne die http://x.org", (0, 1, 2)), "now": ("jetzt", (0,))}
    document = open_document(page.encode(), format="markdown")
    answers = Dictionary(known).translate([s.text for s in document.sentences], alignment=True)
    assert document.write(answers) == b"open *the* door\n\njetzt"
    assert document.left_out == (
        "line 1 (open *the* door): its translation would read as other markup",
    )


@pytest.mark.parametrize(
    ("translation", "links", "found", "reason"),
    [
        ("`x <y>` take", (1, 0, 2), r"\``x <y>`\` take", ""),
        ("x take <y>", (1, 0, 2), "`x <y>` take", ""),
        ("x take <y>", (1, 0, None), "take `x <y>`", "<y> would be there twice"),
    ],
)
def test_a_part_that_is_torn_apart_is_whole_or_told(
    translation: str, links: Sequence[int | None], found: str, reason: str
) -> None:
    """Its pieces would stand in the sentence beside the part."""
    document = open_document(b"take `x <y>`", format="markdown")
    answers = Dictionary({"take x <y>": (translation, links)}).translate(
        ["take x <y>"], alignment=True
    )
    assert document.write(answers).decode() == found
    assert document.left_out == ((f"line 1 (take `x <y>`): {reason}",) if reason else ())


def test_front_matter_that_a_template_makes_is_told() -> None:
    document = open_document(b"---\ntitle: {{ a }}: b\n---\n", format="markdown")
    assert document.write([]) == b"---\ntitle: {{ a }}: b\n---\n"
    assert document.left_out == (
        "line 1 (--- title: {{ a }}: b ---): front matter that is no YAML",
    )


WORDS = st.sampled_from(["the", "old", "dog", "runs", "home", "and", "sleeps.", "it", "is"])
MARKS = st.sampled_from(
    ["`VERSION`", "`lib/VERSION.rb`", "`x`{.py}", "$x_1$", "[^1]", ":smile:", "{{ page.title }}",
     "{{< ref >}}", "{% include a.md %}", "[@doe, p. 3]", "<kbd>Ctrl</kbd>", "{count}", "%{n}",
     "https://x.org/a_b", "<http://y.org>", "H~2~O", "![](p.png)", "@tom", "&copy;", "[[a|b]]",
     "\\ref{fig}", "<img src=a>", "++ctrl+c++"]
)  # fmt: skip
PAIRS = st.sampled_from(
    ["**{}**", "*{}*", "[{}](http://x.y)", "[{}](z 'T')", "[{}][name]", "[{}][none]", "[{}]{{.a}}",
     "~~{}~~", "=={}==", "<span class=a>{}</span>", "[{}]({{{{ x }}}}/y)", "^[{}]"]
)  # fmt: skip
PLAIN = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)
INLINE = st.one_of(
    PLAIN,
    MARKS,
    st.builds(str.format, PAIRS, PLAIN),
    st.sampled_from(["[the manual]", "[our page][]", "\\*", "a *b", "<br>"]),
)
LINES = st.lists(
    st.tuples(INLINE, st.sampled_from([" ", " ", " \n", "\n", "  \n", "\u00a0\n"])).map(
        "".join
    ),
    min_size=1,
    max_size=9,
).map(lambda parts: "".join(parts).strip())  # fmt: skip
BLOCKS = st.sampled_from(
    ["{}", "# {} {{#id}}", "> [!NOTE]\n> {}", "- {}", "- [ ] {}", "1. {}", "[^1]: {}",
     "term\n: {}", "::: warning\n{}\n:::", '!!! note "Title"\n\n    {}', '=== "Tab"\n\n    {}',
     "| {} | b |\n|-|-|", "{{{{< note >}}}}\n{}\n{{{{< /note >}}}}", "{}\n{{: .big }}",
     "<div>\n{}\n</div>", "```\n{}\n```"]
)  # fmt: skip


@st.composite
def pages(draw: st.DrawFn) -> str:
    blocks = []
    for block in draw(st.lists(BLOCKS, min_size=1, max_size=4)):
        prefix = {">": "> ", "-": "  ", "1": "   ", "!": "    ", "=": "    ", "[": "    "}.get(
            block[0], "  " if block[0] == "t" else ""
        )
        lines = draw(LINES)
        if block[0] in "#|":
            lines = " ".join(lines.split())
        blocks.append(block.format(lines.replace("\n", "\n" + prefix)))
    names = "[the manual]: http://m.n\n[our page]: p.md\n[name]: http://o.p\n*[HTML]: a language\n"
    return "\n\n".join([*blocks, names])


@settings(derandomize=True, max_examples=40, deadline=None)
@given(pages())
def test_structure_stays(page: str) -> None:
    assert echoed(page.encode(), "markdown") == page.encode()
    for translator in (Shouting(), Reordering()):
        found = translate_document(page.encode(), translator, format="markdown").decode()
        assert marks(found) == marks(page)
        assert outline(found) == outline(page)
        assert mkdocs(found) == mkdocs(page)


ANY_MARK = re.compile(
    r"`[^`\n]+`|\$x_1\$|\[\^1\]:?|:smile:|\{\{.*?\}\}|\{%.*?%\}|\[@doe, p\. 3\]|</?\w+[^>]*>"
    r"|\{[^{}\n]*\}|https?://[\w./]+|H~2~O|@tom|&copy;|\[\[a\|b\]\]|\+\+ctrl\+c\+\+|\[!NOTE\]"
    r"|(?m:^:::.*|^!!! note|^=== |^: |^\*\[HTML\].*|^\[[a-z ]+\]: .*)"
)


def marks(page: str) -> Counter[str]:
    """Return how often each mark stands in a page."""
    return Counter(ANY_MARK.findall(page))


def outline(page: str) -> tuple[list[str], Counter[str]]:
    """Return blocks, and what links, code and pictures there are, as CommonMark has them."""
    blocks, inline = [], Counter[str]()
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(page):
        blocks += [token.type] * (token.type != "inline")
        for child in token.children or ():
            if child.type not in ("text", "softbreak"):
                content = child.content if child.type == "code_inline" else ""
                inline[
                    f"{child.type} {child.attrs.get('href') or child.attrs.get('src')} {content}"
                ] += 1
    return blocks, inline


def mkdocs(page: str) -> Counter[str]:
    """Return how often each tag stands in a page of MkDocs, but for links.

    MkDocs takes [one] [two] for a link to two, so that their number depends on the order.
    """
    written = markdown.markdown(
        page, extensions=["admonition", "attr_list", "def_list", "footnotes", "tables"]
    )
    return Counter(re.findall(r"<(?!a\b)[a-z]\w*", written))
