"""Protected parts of texts: what is found, replaced in pairs, and put back byte for byte."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heedful.errors import ConfigError, ModelError
from heedful.text.protected_spans import (
    RESERVED,
    SPAN_KINDS,
    Protection,
    reserved_marks,
    restored,
    span_kinds,
)
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.text.tokenizer_spec import TokenizerSpec
from heedful.text.tokenizer_training import train_pair

ALL = Protection(SPAN_KINDS)


@pytest.mark.parametrize(
    ("kind", "text", "parts"),
    [
        ("urls", "See http://a.org/x?y=1#z, (https://b.de/c_d). ftp://e", None),
        ("urls", "www.example.org/a/b. wwwx", ["www.example.org/a/b"]),
        ("emails", "Write to a.b+c@d-e.co.uk.", ["a.b+c@d-e.co.uk"]),
        ("tags", '<b>bold</b> a < b <br/> &amp; <a href="x">', None),
        ("markup", "the :ref:`a b` and |sub| [1]_ [#x]_", [":ref:`a b`", "|sub|", "[1]_", "[#x]_"]),
        ("markup", ":py:class:`~a.B` a | b | c", [":py:class:`~a.B`"]),
        ("code", "use ``x = `y` `` or `z`", ["``x = `y` ``", "`z`"]),
        ("code", "a `link`_ stays", []),
        ("placeholders", "%s of %d, %(name)s, %5.2f, %1$s", None),
        ("placeholders", "{} {0:.2f} {a.b[0]} {{ x|y }} ${HOME}", None),
        ("placeholders", "100% sure, 5 %, {not this}", []),
        ("emoji", "a 👍🏽 b 👨‍👩‍👧 c ❤️", ["👍🏽", "👨‍👩‍👧", "❤️"]),
    ],
)
def test_parts_are_found(kind, text, parts):
    found = [text[start:end] for start, end in Protection((kind,)).find(text)]
    if parts is None:
        parts = {
            "urls": ["http://a.org/x?y=1#z", "https://b.de/c_d", "ftp://e"],
            "tags": ["<b>", "</b>", "<br/>", "&amp;", '<a href="x">'],
            "placeholders": ["%s", "%d", "%(name)s", "%5.2f", "%1$s"]
            if "%" in text
            else ["{}", "{0:.2f}", "{a.b[0]}", "{{ x|y }}", "${HOME}"],
        }[kind]
    assert found == parts


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("placeholders", "%{count} {{x}} {{{x}}} $t(a.b, {{n}}) $(x) #{x} :name (:count), :Max"),
        ("placeholders", "@:name @:{'a b'} @.lower:a.b @user %name% %%x%% $name $NAME$ [X7X] [1]"),
        ("placeholders", "__X__ __A_B__ { $count } { name } {n, number} {d, date, short}"),
        ("placeholders", "%<a>s %Y-%m-%d %1 %L2 %n %hhu"),
        ("tags", "<0> </0> <x.y z=1/> <%= x %> <!-- a -->"),
        ("emoji", "♪ → ★ 1️⃣ 🇩🇪🇫🇷 🏴\U000e0067\U000e007f :smile: :+1: ⌘"),
        ("urls", "docs.example.org example.com/a/b?c=d (http://e.f)"),
    ],
)
def test_every_word_but_its_separators_is_a_part(kind, text):
    parts = Protection((kind,)).find(text)
    left = list(text)
    for start, end in parts:
        left[start:end] = [" "] * (end - start)
    assert not "".join(left).strip(" (),-")


@pytest.mark.parametrize(
    "text",
    [
        "It is 12:30:45, 5 % or 100%; it costs $5, 20 °C, a & b, see [this] and [1](x).",
        "A note: this :) is :-) fine, a:b, C:\\x, x < y and z > w, 7 @ 5 pm, {not this}, {a, b}.",
        "Mr.No said. Amazon.com or a.community",
    ],
)
def test_common_signs_of_a_sentence_are_no_parts(text):
    assert ALL.find(text) == []


PARTS = st.sampled_from(["%s", "{a}", "<b>", "``c``", "http://d.e", "😀", RESERVED[3], "\n"])
TEXTS = st.lists(st.one_of(PARTS, st.text(max_size=4)), max_size=50).map(" ".join)


@given(text=TEXTS)
def test_all_comes_back_byte_for_byte(text):
    marked, parts = ALL.protect(text)
    marks = reserved_marks(marked)
    assert len(marks) == len(parts)
    assert restored(marked, marks, parts) == text
    backwards = restored("".join(reversed(marks)), marks, parts)
    assert Counter(backwards) == Counter("".join(parts))


@given(source=TEXTS, target=TEXTS)
def test_a_pair_has_the_marks_of_what_is_on_both_sides(source, target):
    sides = ALL.protect_pair(source, target)
    marks = [reserved_marks(text) for text in sides]
    assert len(set(marks[0])) == len(marks[0])
    assert Counter(marks[0]) == Counter(marks[1])
    shared = Counter(source[a:b] for a, b in ALL.find(source)) & Counter(
        target[a:b] for a, b in ALL.find(target)
    )
    assert len(marks[0]) == min(shared.total(), len(RESERVED))
    if shared.total() == 0 and not reserved_marks(source + target):
        assert sides == (source, target)


def test_a_mark_stands_for_the_same_part_on_both_sides():
    source, target = ALL.protect_pair("%s of {n} <i>", "{n} von %s {m}")
    first, second = reserved_marks(source)
    assert source == f"{first} of {second} <i>"
    assert target == f"{second} von {first} {{m}}"
    assert restored(target, [first, second], ["%s", "{n}"]) == "{n} von %s {m}"


def test_kinds_are_named():
    assert span_kinds(["all"]) == SPAN_KINDS
    assert span_kinds(["tags,urls"]) == ("urls", "tags")
    with pytest.raises(ConfigError, match="'url'"):
        span_kinds(["url"])


def make(kind, joint=True):
    texts = ["a b c %s", "d e f {x}"] * 3
    size = 300 if kind == "byte-bpe" else 40
    spec = TokenizerSpec(kind=kind, vocabulary_size=size, joint=joint)
    return train_pair(spec, texts, texts)


@pytest.mark.parametrize("kind", ["bpe", "byte-bpe", "unigram", "characters"])
@pytest.mark.parametrize("joint", [True, False])
def test_reserved_tokens_are_one_token_each(tmp_path, kind, joint):
    plain = make(kind, joint)
    pair = plain.protecting(["urls"])
    assert pair.fingerprint != plain.fingerprint
    assert pair.fingerprint != plain.protecting(["emails"]).fingerprint
    assert sorted(pair.reserved.values()) == [*range(plain.target.size, pair.target.size)]
    text = f"a{RESERVED[0]} b {RESERVED[31]}{RESERVED[5]}c"
    ids = pair.target.encode(text)
    assert [i for i in ids if i >= plain.target.size] == [
        pair.reserved[mark] for mark in reserved_marks(text)
    ]
    assert pair.target.decode(ids) == text
    assert pair.source.encode("a b c") == plain.source.encode("a b c")
    pair.save(tmp_path)
    again = TokenizerPair.load(tmp_path)
    assert (again.fingerprint, again.protection) == (pair.fingerprint, pair.protection)
    assert (again.joint, again.reserved) == (joint, pair.reserved)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"schema_version": 2, "kinds": ["urls"]}',
        '{"schema_version": 1, "kinds": []}',
        '{"schema_version": 1, "kinds": [["urls"]]}',
        '{"schema_version": 1, "kinds": ["others"]}',
        "[" * 100_000,
    ],
)
def test_a_damaged_list_of_kinds_is_named(tmp_path, content):
    make("bpe").protecting(["urls"]).save(tmp_path)
    (tmp_path / "protected_spans.json").write_text(content)
    with pytest.raises(ModelError, match="parts of texts") as error:
        TokenizerPair.load(tmp_path)
    assert error.value.where.endswith("protected_spans.json")
