"""Documents in another encoding than they seem to have are refused, not translated as nonsense."""

from __future__ import annotations

import pytest

from heedful.apps.documents.document_encoding import decode
from heedful.errors import DataError

TEXT = "1\n00:00:01,000 --> 00:00:02,000\nTom lives here.\n"


@pytest.mark.parametrize("order", ["le", "be"])
def test_utf16_without_a_mark_is_named(order: str) -> None:
    data = TEXT.encode(f"utf-16-{order}")
    with pytest.raises(DataError, match=f"--encoding utf-16-{order}"):
        decode(data, "a.srt", None)
    assert decode(data, "a.srt", f"utf-16-{order}")[0] == TEXT


def test_a_mark_says_it() -> None:
    text, charset = decode(TEXT.encode("utf-16"), "a.srt", None)
    assert text == TEXT
    assert charset.encode(text, "a.srt") == TEXT.encode("utf-16")


def test_a_stray_nul_is_kept() -> None:
    assert decode(b"a\0b", "a.txt", None)[0] == "a\0b"
