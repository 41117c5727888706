"""Normalisation of text before it is cut into pieces, by a rule that tokenizers record by name.

Equal words have several spellings in Unicode: é is one character or two, a space may forbid a line
break, a soft hyphen is not seen at all. A model knows the spelling that it was trained on. The rule
`nfc-2` gives such words one spelling. `compatibility-2` also replaces other forms of letters:
full-width Latin letters, half-width kana, ligatures and the Arabic forms that PDF files hold.

What a rule does never changes, as models have learned from it; another behaviour is a new rule. The
first rules, `nfc` and `compatibility`, keep a joiner after a letter whose accent is a mark of its
own, which a second pass removes, as the letter has become one character.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from itertools import chain, pairwise

import tokenizers
from tokenizers import Regex, models, normalizers

from heedful.config import TextNormalization

_SPACES = "\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_INVISIBLE = "\xad\u2060-\u2064\ufeff"
_DIRECTION = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_RIGHT_TO_LEFT = (
    "\u0590-\u061b\u061d-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff"
)
# Thai, Lao, Burmese and Khmer have a zero-width space between words, where lines may end.
_PARTED_BY_U200B = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1a20-\u1aaf\ua9e0-\ua9ff\uaa60-\uaa7f"
# Joiners belong to the spelling after letters without case (Arabic, Indic) and signs (emoji).
_JOINED = (
    r"[\p{M}\p{So}\p{Sk}\x{1f000}-\x{1faff}[\p{Lo}&&[^\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]]]"
)
# Letters and signs that a mark composes with, and after which no joiner belongs to the spelling.
_COMPOSED = r"[\p{Lu}\p{Ll}\p{Lt}\p{Sm}\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]"
# The normal form puts several marks in an order of its own, and composes some with their letter. So
# what stands after marks goes wherever it would go in that form. \G goes on behind a removed one.
_AFTER_MARKS = (
    rf"(?:{_COMPOSED}|\G(?!\A))\p{{M}}+\K[\u200c\u200d]+",
    rf"(?:[\p{{M}}&&[^{_PARTED_BY_U200B}]]|\G(?!\A))\p{{M}}*\K\u200b+",
)
_OTHER_FORMS = ((0xFB00, 0xFB06), (0xFB13, 0xFB17), (0xFE80, 0xFEFC), (0xFF10, 0xFF19),
                (0xFF21, 0xFF3A), (0xFF41, 0xFF5A), (0xFF66, 0xFF9F))  # fmt: skip


class TextNormalizer:
    """The steps of a rule.

    Args:
        rule: name of the rule; `none` has no steps.

    Attributes:
        steps: steps of the `tokenizers` library, in their order.
    """

    def __init__(self, rule: TextNormalization) -> None:
        self.steps: list[normalizers.Normalizer] = []
        if rule == "none":
            return
        form, _, version = rule.partition("-")
        ranges = _OTHER_FORMS if form == "compatibility" else ()
        forms = [chr(code) for code in chain(*(range(a, b + 1) for a, b in ranges))]
        self.steps += [
            normalizers.Replace(Regex(f"[{_SPACES}]"), " "),
            normalizers.Replace(Regex(f"[{_INVISIBLE}]"), ""),
            # Marks of direction decide the order of a text that has letters from right to left, so
            # only texts without such letters lose them. \G begins where the last match ended.
            normalizers.Replace(
                Regex(
                    rf"(?:\A(?=[^{_RIGHT_TO_LEFT}]*\z)|\G(?!\A))[^{_DIRECTION}]*+\K[{_DIRECTION}]"
                ),
                "",
            ),
        ]
        usual = [normalizers.Replace(each, unicodedata.normalize("NFKC", each)) for each in forms]
        # What stands before a joiner or a zero-width space decides whether it stays.
        kept_apart = [
            normalizers.Replace(Regex(f"(?<![{_PARTED_BY_U200B}])\u200b"), ""),
            normalizers.Replace(Regex(rf"(?<!{_JOINED})[\u200c\u200d]"), ""),
        ]
        if version:
            after_marks = [normalizers.Replace(Regex(each), "") for each in _AFTER_MARKS]
            self.steps += [*usual, normalizers.NFC(), *kept_apart, *after_marks]
        else:
            self.steps += [*kept_apart, *usual]
        # Last: it composes characters that a removed one kept apart.
        self.steps.append(normalizers.NFC())
        self._sequence = normalizers.Sequence(self.steps)
        changed = f"{_SPACES}{_INVISIBLE}{_DIRECTION}\u200b-\u200d{''.join(forms)}"
        self._changed = re.compile(f"[{changed}]")

    def normalized(self, text: str) -> str:
        """Return a text in the rule's spelling; with half a surrogate pair it does not change."""
        # The steps take 20 µs for a sentence, and most sentences need none of them.
        if not self.steps or text.isascii():
            return text
        if self._changed.search(text) is None and unicodedata.is_normalized("NFC", text):
            return text
        try:
            return str(self._sequence.normalize_str(text))
        except (TypeError, UnicodeEncodeError):  # the error of encoding it names the place
            return text

    def origin(self, text: str) -> list[tuple[int, int]]:
        """Return the characters of a text that each character of the normalised text comes from.

        Returns:
            Index of the first character and of the one after the last; together they are the whole
            text, as what is dropped belongs to the character before it.
        """
        offsets = self._characters.encode(text, add_special_tokens=False).offsets
        if not offsets:
            return []
        starts = [0, *(start for start, _ in offsets[1:]), len(text)]
        spans = zip(pairwise(starts), offsets, strict=True)
        return [(start, max(following, end)) for (start, following), (_, end) in spans]

    @functools.cached_property
    def _characters(self) -> tokenizers.Tokenizer:
        """A tokenizer for which every character of the normalised text is a token."""
        library = tokenizers.Tokenizer(models.BPE(vocab={"?": 0}, merges=[], unk_token="?"))
        library.normalizer = self._sequence
        return library
