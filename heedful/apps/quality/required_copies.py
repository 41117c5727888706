"""Parts of texts that their translations must contain, required beside the terms of a glossary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from heedful.pipelines.glossary import Occurrence, spellings
from heedful.pipelines.search_items import Terminology
from heedful.search.phrase_automaton import RequiredPhrase
from heedful.text.inline_terms import InlineTerm
from heedful.text.tokenizer import TextTokenizer


class RequiredCopy(NamedTuple):
    """A part of a text that its translation must contain.

    Args:
        part: as it stands in the text.
        forms: any of them serves in the translation.
        name: what to call it.
    """

    part: str
    forms: Sequence[str]
    name: str


@dataclass(frozen=True)
class RequiredCopies:
    """A glossary that also requires copies.

    Args:
        glossary: the terms.
        copies: of each text.
    """

    glossary: Terminology | None
    copies: Mapping[str, Sequence[RequiredCopy]]

    @property
    def is_soft(self) -> bool:
        """True if the terms are soft; the copies never are."""
        return self.glossary is not None and self.glossary.is_soft

    def check(self, tokenizer: TextTokenizer) -> None:
        """Refuse terms that a model cannot write."""
        if self.glossary is not None:
            self.glossary.check(tokenizer)

    def find(self, text: str) -> Sequence[Occurrence]:
        """The terms in a text."""
        return () if self.glossary is None else self.glossary.find(text)

    def inline(self, text: str) -> Sequence[InlineTerm]:
        """The translations to write into a text."""
        return () if self.glossary is None else self.glossary.inline(text)

    def phrases(self, text: str, tokenizer: TextTokenizer) -> tuple[RequiredPhrase, ...]:
        """The phrases of terms and copies; a text may be a piece of one that was given.

        A form that the tokenizer cannot spell does not serve.
        """
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
