"""A translator that is consistent with its source in capitals, numbers and unknown words.

The source is rewritten into text that models handle well and is translated; then the translation is
rewritten. Alignments are between the original source and the final translation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from heedful.apps.quality.capitals import capital_parts, capitals, sentence_case
from heedful.apps.quality.number_mending import Form, Mending, NumberForm, mend_numbers
from heedful.apps.quality.reports import Languages
from heedful.apps.quality.required_copies import RequiredCopies, RequiredCopy
from heedful.apps.quality.respelled_translation import every, respelled, with_source
from heedful.apps.quality.respelling import Edit, Respelling, Span
from heedful.apps.quality.unknown_words import name_edits, names_to_copy, stand_ins, unknown_words
from heedful.pipelines.batching import list_of_texts
from heedful.pipelines.search_items import Terminology
from heedful.pipelines.text_splitting import Translation, clean
from heedful.pipelines.translation import TranslationPipeline
from heedful.search.search_settings import SearchSettings

_LEAST_GAIN = 1.0
"""Nats by which a translation must be more probable with a known name in the place of a lost one.
What a model knows makes it less probable: "Tom are sour" for "Lemons are sour". In training
sentences of Tatoeba, 51 of 57 lost cities gain as much, and 12 of 26 words that are no lost names
of 8,000 sentences."""


class ConsistentTranslation(TranslationPipeline):
    """A translation pipeline whose translations are consistent with their sources.

    Args:
        pipeline: pipeline of the translator.
        capitals: true to translate sentences in capitals in sentence case, and to capitalize their
            translations.
        copy_unknown: true to copy words with characters unknown to the source's tokenizer, and
            names that the model misspells or leaves out. Each of the words is replaced by a
            placeholder name, which the translation must contain, and so is a name that was left
            out, in a second search; a name takes the place of what is like it and was never seen in
            training. Names need the words of the training in the model's directory. A pipeline that
            cannot force words only spells names.
        numbers: form of numbers, which are corrected where the right number is certain; if unset,
            they stay as the model writes them. A second search is required to write missing
            numbers.
        languages: codes of source and target, which decide the case of some letters, the separators
            in numbers, and number words.

    Attributes:
        mended: count of numbers that were corrected in translations so far.
        unmended: count of numbers that remain missing in translations or lack a counterpart in the
            source.

    Raises:
        ConfigError: when numbers are to be localized and a language is unknown.
    """

    def __new__(cls, pipeline: TranslationPipeline | None = None, **options: Any) -> Self:
        """Make an object that searches as the pipeline does, which may be one without PyTorch."""
        kind = type(pipeline)
        if pipeline is None or issubclass(cls, kind):  # copies are made without arguments
            return super().__new__(cls)
        made: Any = type(cls.__name__, (cls, kind), {})
        both: Self = super().__new__(made)
        return both

    def __init__(
        self,
        pipeline: TranslationPipeline,
        *,
        capitals: bool = False,
        copy_unknown: bool = False,
        numbers: Form | None = None,
        languages: Languages = (None, None),
    ) -> None:
        vars(self).update(vars(pipeline))  # the same models and engines
        self.capitals = capitals
        self.copy_unknown = copy_unknown
        self.numbers = None if numbers is None else NumberForm(numbers, languages)
        self.languages = languages
        self.mended = 0
        self.unmended = 0

    def translate(
        self,
        texts: Sequence[str],
        *,
        glossary: Terminology | None = None,
        **options: Any,
    ) -> list[Translation]:
        """Translate texts; see `TranslationPipeline.translate`.

        Args:
            texts: texts of any number of lines.
            glossary: glossary; its terms are also found in capitals, and kept in translations.
            **options: other options of `TranslationPipeline.translate`.
        """
        sources = [_Source(text, self, glossary) for text in list_of_texts(texts, "texts")]
        translations = self._translate(sources, glossary, options)
        if self.copy_unknown and self.forces_words and _can_require(options):
            self._copy_names(sources, translations, glossary, options)
        if self.numbers is None:
            return translations
        form = self.numbers
        mended = [self._mend(*each, form) for each in zip(sources, translations, strict=True)]
        wrong = [i for i, (_, mending) in enumerate(mended) if mending.missing]
        if wrong and self.forces_words and _can_require(options):
            chosen = [sources[i] for i in wrong]
            numbers = [
                [
                    RequiredCopy(n.text, (form.write(n.text), n.text), n.text)
                    for n in mended[i][1].missing
                ]
                for i in wrong
            ]
            second = self._translate(chosen, glossary, _for_some(options, wrong), numbers)
            for i, source, translation in zip(wrong, chosen, second, strict=True):
                candidate = self._mend(source, translation, form)
                before, after = mended[i][1].wrong, candidate[1].wrong
                if after < before:
                    self.mended += before - after
                    mended[i] = _without_copies(candidate[0], translations[i]), candidate[1]
        self.mended += sum(len(mending.edits) for _, mending in mended)
        self.unmended += sum(mending.wrong for _, mending in mended)
        found = [translation for translation, _ in mended]
        if not options.get("alignment"):
            for each in (one for best in found for one in best.n_best):
                each.alignment = None
        return found

    def _copy_names(
        self,
        sources: list[_Source],
        translations: list[Translation],
        glossary: Terminology | None,
        options: Mapping[str, Any],
    ) -> None:
        """Translate texts whose names were lost once more, with stand-ins for these names."""
        lost = [
            names_to_copy(source.text, each, self.languages, self.tokenizers)
            for source, each in zip(sources, translations, strict=True)
        ]
        chosen = [i for i, names in enumerate(lost) if names]
        again = [_Source(sources[i].text, self, glossary, lost[i]) for i in chosen]
        if again:
            found = self._translate(again, glossary, _for_some(options, chosen))
            for i, source, translation in zip(chosen, again, found, strict=True):
                gain = _mean_score(translation) - _mean_score(translations[i])
                if gain * len(translation.tokens) > _LEAST_GAIN:
                    sources[i], translations[i] = source, translation

    def _translate(
        self,
        sources: Sequence[_Source],
        glossary: Terminology | None,
        options: Mapping[str, Any],
        numbers: Sequence[Sequence[RequiredCopy]] | None = None,
    ) -> list[Translation]:
        """Translate rewritten texts, with alignments if numbers are corrected.

        Args:
            sources: the texts.
            glossary, options: arguments of the translation.
            numbers: numbers of each text that its translation must contain.
        """
        if _can_require(options):
            rows = zip(sources, numbers or [()] * len(sources), strict=True)
            copies = {one.respelling.result: [*one.copies, *more] for one, more in rows}
            if any(copies.values()):
                glossary = RequiredCopies(glossary, copies)
        aligned = options.get("alignment", False) or self.numbers is not None
        found = super().translate(
            [source.respelling.result for source in sources],
            glossary=glossary,
            **{**options, "alignment": aligned},
        )
        return [every(each, source.finish) for source, each in zip(sources, found, strict=True)]

    def _mend(
        self, source: _Source, translation: Translation, form: NumberForm
    ) -> tuple[Translation, Mending]:
        """Return a translation with corrected numbers, and the edits of its best translation."""

        def mend(one: Translation) -> Mending:
            return mend_numbers(source.respelling.text, one, form, one.alignment)

        def finish(one: Translation) -> Translation:
            return respelled(one, Respelling.of(one, mend(one).edits))

        return every(translation, finish), mend(translation)

    def count_tokens(self, words: Sequence[str]) -> list[int]:
        """Return the number of tokens of each source word; a large number for unknown words."""
        source = self.tokenizers.source
        return [
            len(ids) + (len(word) if source.unk in ids else 0)
            for word, ids in zip(words, source.encode_batch(words), strict=True)
        ]


def _mean_score(translation: Translation) -> float:
    return translation.score / max(1, len(translation.tokens))


def _without_copies(translation: Translation, first: Translation) -> Translation:
    """Return a translation of the second search, with the phrases of the first search."""
    for each in translation.n_best:
        each.required = first.required
        each.missing = tuple(name for name in each.missing if name in first.missing)
    return translation


def _can_require(options: Mapping[str, Any]) -> bool:
    """Return True if the search supports required phrases: no sampling, no diverse beam."""
    settings = options.get("settings")
    changes = {name: options[name] for name in SearchSettings.model_fields if name in options}
    search = SearchSettings.parse({**(settings.plain() if settings else {}), **changes})
    return not search.sampling and not search.alternatives


def _for_some(options: Mapping[str, Any], numbers: Sequence[int]) -> dict[str, Any]:
    """Return options for a subset of the texts, without callbacks that concern all texts."""
    chosen = {**options, "warn": None, "progress": None}
    if options.get("prefixes") is not None:
        chosen["prefixes"] = [options["prefixes"][i] for i in numbers]
    return chosen


class _Source:
    """A rewritten text, and the edits of its translation.

    Args:
        text: text to translate.
        translator: translator with the options of consistency.
        glossary: glossary of the translation.
        names: names to copy as if they were unknown words.

    Attributes:
        respelling: edits of the text for the model.
    """

    def __init__(
        self,
        text: str,
        translator: ConsistentTranslation,
        glossary: Terminology | None,
        names: frozenset[str] = frozenset(),
    ) -> None:
        self.translator = translator
        self.names = names
        self.glossary = glossary
        self.lines: list[tuple[bool, str]] = []
        """For each line of the translation: true if it is capitalized, and the text after it."""
        self.copies: list[RequiredCopy] = []
        """Placeholder names of unknown words."""
        edits: list[Edit] = []
        done = 0
        self.text = text = clean(text)
        for line in text.split("\n"):
            edits += self._line(line, done)
            done += len(line) + 1
        self.respelling = Respelling.of(text, edits)

    def _line(self, line: str, offset: int) -> Iterator[Edit]:
        """Return the edits of a line at an offset; its parts become separate lines."""
        parts = capital_parts(line) if self.translator.capitals else [((0, len(line)), False)]
        for number, ((start, end), is_upper) in enumerate(parts):
            if number:
                yield offset + parts[number - 1][0][1], offset + start, "\n"
            names = list(self._names(line[start:end]))
            yield from _moved(names, offset + start)
            if is_upper:
                yield from _moved(self._sentence_case(line[start:end], names), offset + start)
            self.lines.append((is_upper, " " if number + 1 < len(parts) else "\n"))

    def _names(self, text: str) -> Iterator[Edit]:
        """Return edits that replace unknown words by placeholder names, while there are names."""
        if not (self.translator.copy_unknown and self.translator.forces_words):
            return
        pair = self.translator.tokenizers
        spans = unknown_words(text, pair.source)
        spans += [
            match.span()
            for name in self.names
            for match in re.finditer(rf"(?<!\w){name}(?!\w)", text)
        ]
        spans = _apart(sorted(spans))
        if spans:
            taken = [copy.part for copy in self.copies]
            names = stand_ins("\n".join([self.text, *taken]), (pair.source, pair.target))
            for (start, end), name in zip(spans, names, strict=False):
                self.copies.append(RequiredCopy(name, (name,), text[start:end]))
                yield start, end, name

    def _sentence_case(self, text: str, names: Sequence[Edit]) -> list[Edit]:
        terms = [] if self.glossary is None else self.glossary.find(text)
        return sentence_case(
            text,
            self.translator.languages[0],
            count_tokens=self.translator.count_tokens,
            kept=[
                *((each.start, each.end) for each in terms if not each.term.ignore_case),
                *((start, end) for start, end, _ in names),
            ],
        )

    def finish(self, translation: Translation) -> Translation:
        """Return the final translation, without next-best translations."""
        translation = with_source(translation, self.respelling)
        names = list(self._unknown(translation))
        edits = [*names, *self._case(translation, [(start, end) for start, end, _ in names])]
        translation = respelled(translation, Respelling.of(translation, edits))
        if not self.translator.copy_unknown:
            return translation
        pair, languages = self.translator.tokenizers, self.translator.languages
        spelled = name_edits(self.text, translation, languages, pair)
        return respelled(translation, Respelling.of(translation, spelled))

    def _unknown(self, translation: str) -> Iterator[Edit]:
        """Return edits that replace placeholder names by the unknown words."""
        if self.copies and not self._has_other_words():  # a model may add words to such a text
            yield 0, len(translation), self.text
        else:
            yield from self._replaced(translation)

    def _has_other_words(self) -> bool:
        """Return whether the text has words besides those that are copied."""
        written = self.respelling.result
        left_out = [(start, end, "") for start, end, _ in self._replaced(written)]
        return any(map(str.isalnum, Respelling.of(written, left_out).result))

    def _replaced(self, text: str) -> Iterator[Edit]:
        for name, _, word in self.copies:
            for match in re.finditer(rf"(?<!\w){name}(?!\w)", text):
                yield *match.span(), word

    def _case(self, translation: str, names: Sequence[Span]) -> Iterator[Edit]:
        """Return edits that capitalize lines of a translation and join the parts of a line."""
        done = 0
        kept = [*self._terms(translation), *names]
        for line, (is_upper, after) in zip(translation.split("\n"), self.lines, strict=False):
            if is_upper:
                inside = [(a - done, b - done) for a, b in kept]
                edits = capitals(line, self.translator.languages[1], inside)
                yield from _moved(edits, done)
            done += len(line) + 1
            if done <= len(translation):
                yield done - 1, done, after

    def _terms(self, translation: str) -> Iterator[Span]:
        """Return the ranges of the glossary's terms in a translation."""
        if self.glossary is None:
            return
        for occurrence in self.glossary.find(self.respelling.result):
            for target in occurrence.term.targets:
                for match in re.finditer(rf"(?<!\w){re.escape(target)}(?!\w)", translation):
                    yield match.span()


def _apart(spans: Sequence[Span]) -> list[Span]:
    """Return the spans that overlap none before them."""
    kept: list[Span] = []
    for span in spans:
        if not kept or kept[-1][1] <= span[0]:
            kept.append(span)
    return kept


def _moved(edits: Sequence[Edit], offset: int) -> Iterator[Edit]:
    return ((start + offset, end + offset, new) for start, end, new in edits)
