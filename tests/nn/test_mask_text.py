"""Masks written as expressions: what is read is what was meant, and errors say where."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heedful.errors import ConfigError
from heedful.nn.mask_text import mask_kinds, parse_mask, write_mask
from heedful.nn.positions import Positions

LENGTH = 9

# An expression with the function of (query, key) that it stands for, made side by side.
ATOMS = st.one_of(
    st.just(("causal", lambda i, j: j <= i)),
    st.just(("everything", lambda i, j: True)),
    st.just(("segment", lambda i, j: True)),
    st.integers(1, 5).map(lambda n: (f"window({n})", lambda i, j: abs(i - j) < n)),
    st.integers(0, 5).map(lambda n: (f"prefix( {n} )", lambda i, j: j < n)),
    st.integers(1, 5).map(
        lambda n: (f"strided({n})", lambda i, j: abs(i - j) < n or (i - j) % n == 0)
    ),
    st.integers(1, 5).map(
        lambda n: (f"fixed({n}, 1)", lambda i, j: i // n == j // n or j % n == n - 1)
    ),
    st.integers(1, 4).map(
        lambda n: (f"dilated({n}, 3)", lambda i, j: abs(i - j) in range(0, 3 * n, 3))
    ),
    st.integers(1, 4).map(lambda n: (f"global({n})", lambda i, j: i < n or j < n)),
    st.integers(1, 3).map(
        lambda n: (
            f"window_2d(3, {n}, 2)",
            lambda i, j: abs(i // 3 - j // 3) < n and abs(i % 3 - j % 3) < 2,
        )
    ),
)


def joined(sign):
    def join(parts):
        text = sign.join(f"({each[0]})" for each in parts)
        test = all if sign.strip() == "&" else any
        return text, lambda i, j: test(each[1](i, j) for each in parts)

    return join


EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(joined(" & ")),
        st.lists(inner, min_size=2, max_size=3).map(joined("|")),
    ),
    max_leaves=5,
)


def seen(text: str) -> list[list[bool]]:
    positions = Positions.of_self(torch.arange(LENGTH)[None])
    return positions.visible(parse_mask(text))[0, 0].tolist()


@given(EXPRESSIONS)
@settings(max_examples=60)
def test_expressions_mean_what_they_say(expression) -> None:
    text, sees = expression
    assert seen(text) == [[sees(i, j) for j in range(LENGTH)] for i in range(LENGTH)]


def test_and_binds_more_tightly_than_or() -> None:
    assert seen("causal & window(2) | prefix(3)") == seen("(causal & window(2)) | prefix(3)")
    assert seen("causal & window(2) | prefix(3)") != seen("causal & (window(2) | prefix(3))")


def test_nothing_is_everything() -> None:
    assert seen("  ") == seen("everything")


@pytest.mark.parametrize("name", mask_kinds())
def test_every_mask_that_can_be_configured_has_a_word(name: str) -> None:
    fields = mask_kinds()[name].setting_names()
    text = f"{name}({', '.join('1' for _ in fields)})" if fields else name
    assert parse_mask(text).kind == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("windw(3)", "Did you mean 'window'"),
        ("window", "size"),
        ("window(0)", "greater than 0"),
        ("window(3, 4)", "window needs size"),
        ("window(-1)", "a number is expected"),
        ("random(2, 1, 8)", "need a seed"),
        ("random(2, 9, 8, 1)", "8 positions make 4 blocks"),
        ("fixed(3, 4)", "exceeds"),
        ("causal causal", "'&' or '|' is expected"),
        ("causal &", "a mask is expected"),
        ("(causal", "')' is expected"),
        ("causal)", "▸"),
        ("causal; rm", "causal▸; rm"),
        ("(" * 200, "too deeply"),
        ("causal & " * 100, "at most 300"),
        ("é", "é"),
    ],
)
def test_errors_say_where(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_mask(text)
    assert message in str(caught.value)


@given(EXPRESSIONS)
@settings(max_examples=60)
def test_what_is_written_reads_as_the_same_mask(expression) -> None:
    text, _ = expression
    written = write_mask(parse_mask(text))
    assert seen(written) == seen(text)
    assert write_mask(parse_mask(written)) == written


def test_written_masks_are_short() -> None:
    assert write_mask(parse_mask(" causal&(window( 4 )|(global(1)))")) == (
        "causal & (window(4) | global(1))"
    )
    assert write_mask(parse_mask("random(2,1,8,7)")) == "random(2, 1, 8, 7)"
