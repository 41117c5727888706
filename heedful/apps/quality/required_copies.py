"""Parts of texts that their translations must contain, in addition to a glossary's terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from heedful.pipelines.glossary import Occurrence, spellings
from heedful.pipelines.search_items import Terminology
from heedful.text.inline_terms import InlineTerm
from heedful.text.tokenizer import TextTokenizer

if TYPE_CHECKING:  # it loads PyTorch, which a text without numbers or terms does not need
    from heedful.search.phrase_automaton import RequiredPhrase


class RequiredCopy(NamedTuple):
    """A part of a text that its translation must contain.

    Args:
        part: part as it occurs in the text.
        forms: accepted forms in the translation.
        name: name for messages.
    """

    part: str
    forms: Sequence[str]
    name: str


@dataclass(frozen=True)
class RequiredCopies:
    """A glossary that also requires copies.

    Args:
        glossary: glossary of terms.
        copies: required copies of each text.
    """

    glossary: Terminology | None
    copies: Mapping[str, Sequence[RequiredCopy]]

    @property
    def is_soft(self) -> bool:
        """True if terms are soft; copies are always required."""
        return self.glossary is not None and self.glossary.is_soft

    def check(self, tokenizer: TextTokenizer) -> None:
        """Refuse terms that a model cannot write."""
        if self.glossary is not None:
            self.glossary.check(tokenizer)

    def find(self, text: str) -> Sequence[Occurrence]:
        """Return the terms in a text."""
        return () if self.glossary is None else self.glossary.find(text)

    def inline(self, text: str) -> Sequence[InlineTerm]:
        """Return the translations of terms to insert into a text."""
        return () if self.glossary is None else self.glossary.inline(text)

    def phrases(self, text: str, tokenizer: TextTokenizer) -> tuple[RequiredPhrase, ...]:
        """Return the phrases of terms and copies in a text, or in a part of a text.

        Forms that the tokenizer cannot spell are left out.
        """
        from heedful.search.phrase_automaton import RequiredPhrase

        phrases = [] if self.glossary is None else [*self.glossary.phrases(text, tokenizer)]
        for part, forms, name in self._of(text):
            ids = [ids for form in forms for ids in spellings(form, tokenizer, spaced=False)]
            fits = tuple(each for each in ids if each and tokenizer.unk not in each)
            if fits and part in text:
                phrases.append(RequiredPhrase(fits, name=name))
        return tuple(phrases)

    def _of(self, text: str) -> Sequence[RequiredCopy]:
        if text in self.copies:
            return self.copies[text]
        return next((row for whole, row in self.copies.items() if text in whole), ())
