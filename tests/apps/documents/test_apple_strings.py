"""Tables and catalogues of Apple's strings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from heedful.apps.documents.formats import translate_document
from heedful.errors import DataError

from .translators import Dictionary, echoed, sentences, shouted

TABLE = r"""/* "not" = "this"; */
"home.title" = "Say \"hello\"\nto %@ and %#@dogs@";
// nor this
plain = 'x' ;
""".replace("plain = 'x'", 'plain = "two words"')
UNIT = {"state": "translated", "value": "Two words"}
CATALOGUE: dict[str, Any] = {
    "sourceLanguage": "en",
    "strings": {
        "": {},
        "%lld": {},
        "Hello there": {},
        "Never": {"shouldTranslate": False},
        "done": {"localizations": {"de": {"stringUnit": UNIT}}},
        "dogs": {
            "comment": "c",
            "extractionState": "manual",
            "localizations": {
                "en": {
                    "variations": {
                        "plural": {
                            "one": {"stringUnit": {"state": "new", "value": 'one "dog"'}},
                            "other": {"stringUnit": {"state": "new", "value": "%lld dogs"}},
                        }
                    }
                },
                "fr": {"stringUnit": UNIT},
            },
        },
        "z": {"localizations": {"aa": {"stringUnit": UNIT}}, "zz": 1},
    },
    "version": "1.0",
}
GERMAN = {"target_language": "de"}
WORDS = st.text(st.sampled_from('ab Z"\\\n\u2028é%@'), max_size=8)


def as_xcode(data: Any) -> str:
    text = json.dumps(data, indent=2, ensure_ascii=False, separators=(",", " : "))
    return text.replace("{}", "{\n\n    }")


def test_values_of_a_table_change() -> None:
    assert sentences(TABLE, "strings") == ['Say "hello"', "to %@ and %#@dogs@", "two words"]
    expected = (
        TABLE.replace("Say", "SAY").replace("hello", "HELLO").replace("to %@ and", "TO %@ AND")
    )
    assert shouted(TABLE, "strings") == expected.replace("two words", "TWO WORDS")
    assert sentences(TABLE, "strings", keys=["plain"]) == ["two words"]


def test_a_table_in_utf_16() -> None:
    data = TABLE.encode("utf-16")
    assert echoed(data, "strings") == data


@given(st.dictionaries(WORDS, WORDS, max_size=3))
@example({"": "%a%aé"})
def test_any_table(values: dict[str, str]) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    text = "".join(f"{quoted(key)} = {quoted(value)};\n" for key, value in values.items())
    assert echoed(text.encode(), "strings") == text.encode()
    assert shouted(text, "strings").casefold().split() == text.casefold().split()


def test_a_catalogue_gets_the_missing_language() -> None:
    text = as_xcode(CATALOGUE)
    assert sentences(text, "xcstrings", **GERMAN) == ["Hello there", 'one "dog"', "%lld dogs", "z"]
    found = json.loads(shouted(text, "xcstrings", **GERMAN))
    strings = found["strings"]
    hello = {"de": {"stringUnit": {"state": "translated", "value": "HELLO THERE"}}}
    assert strings["Hello there"] == {"localizations": hello}
    assert list(strings["dogs"]["localizations"]) == ["de", "en", "fr"]
    plural = strings["dogs"]["localizations"]["de"]["variations"]["plural"]
    assert plural["one"]["stringUnit"]["value"] == 'ONE "DOG"'
    assert plural["other"]["stringUnit"]["value"] == "%lld DOGS"
    for each in strings.values():
        if (languages := each.get("localizations")) and languages.get("de") != {"stringUnit": UNIT}:
            del languages["de"]
    strings["Hello there"] = {}
    assert found == CATALOGUE


def test_a_catalogue_is_written_as_xcode_writes_it() -> None:
    found = shouted(as_xcode(CATALOGUE), "xcstrings", **GERMAN, mark_machine=True)
    assert found == as_xcode(json.loads(found))
    assert '"state" : "needs_review"' in found
    assert shouted(found, "xcstrings", **GERMAN) == found


def test_damage_is_named() -> None:
    with pytest.raises(DataError, match='Line 2 has no "key"'):
        echoed(b'"a" = "b";\n"c" "d";', "strings")
    with pytest.raises(DataError, match="--target-language de"):
        echoed(as_xcode(CATALOGUE).encode(), "xcstrings")
    with pytest.raises(DataError, match="no catalogue"):
        echoed(b"[]", "xcstrings", **GERMAN)


def test_a_line_break_of_a_translation_is_no_escape() -> None:
    known = {"word": ("a\\nb", (0,))}
    found = translate_document(b'a = "word";', Dictionary(known), format="strings")
    assert found == b'a = "a\\\\nb";'
