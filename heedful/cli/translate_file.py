"""`heedful translate-file`: translate the text of a document and keep its format."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.cli.flags import (
    AS_THE_MODEL,
    NO_TERMS,
    STANDARD,
    ConsistencyFlags,
    GlossaryFlags,
    Running,
    SearchFlags,
    languages_of,
    say_counts,
    search_settings,
)
from heedful.cli.parser import flags_of, overrides
from heedful.cli.text_io import PLAIN, Output, Report, refuse_missing_folder, say, terminal
from heedful.durable import open_regular, whole
from heedful.errors import ConfigError, UserError, suggest
from heedful.search.search_settings import SearchSettings

if TYPE_CHECKING:
    from heedful.apps.documents.line_up import TranslatedSentence
    from heedful.apps.quality.consistency import ConsistentTranslation
    from heedful.events import Events
    from heedful.pipelines.translation import TranslationPipeline

    DocumentFlags = Any
else:
    DocumentFlags = flags_of(DocumentSettings, "Document")

_LEFT_OUT_SAID = 10


def translate_file(
    input: Annotated[Path, Parameter(help="Document to translate, in one of the formats above.")],
    output_file: Annotated[
        Path,
        Parameter(
            name="OUT", help="File for the translated document, which appears when it is complete."
        ),
    ],
    /,
    *,
    model: Annotated[
        Path,
        Parameter(
            help="Model, run or Hugging Face directory, or the name of a model that comes with "
            "Heedful."
        ),
    ],
    format: Annotated[
        str | None,
        Parameter(
            help="Format of the document, such as html; guessed from the file name if unset."
        ),
    ] = None,
    force: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Overwrite OUT if it exists."),
    ] = False,
    lenient: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Leave passages as they are whose translation would change the structure of the "
            "document; without it, such a passage is an error.",
        ),
    ] = False,
    languages: Annotated[
        str | None,
        Parameter(
            help="Language codes of source and target, such as en-de, for --numbers and where the "
            "document's are not given; taken from the model's name or card if unset."
        ),
    ] = None,
    document: DocumentFlags | None = None,
    terms: GlossaryFlags = NO_TERMS,
    consistency: ConsistencyFlags = AS_THE_MODEL,
    search: SearchFlags | None = None,
    running: Running = STANDARD,
    output: Output = PLAIN,
) -> None:
    """Translate the text of a document, and keep its format.

    Formats: plain text, HTML, Markdown, subtitles (SRT, WebVTT), PO, XLIFF, JSON, YAML, strings of
    Android, Apple and .NET, TMX, TBX, CSV, TSV, DOCX, PPTX, XLSX, ODT and EPUB. Tags inside a
    sentence are placed at the corresponding words, by word alignment. Code, URLs, placeholders and
    text marked translate="no" are copied. The translation is read again before OUT is written: its
    structure must be that of the document.

    For example:

        heedful translate-file page.html seite.html --model en-de
        heedful translate-file items.csv artikel.csv --model run --columns title description
        heedful translate-file en.json de.json --model run --keys "**.text"
    """
    from heedful.apps.documents.formats import FORMATS, format_of, open_document

    settings = _with_languages(
        DocumentSettings.parse(overrides(document)), *languages_of(model, languages)
    )
    search_options = search_settings(search)
    name = format or format_of(PurePath(input))
    if name not in FORMATS:
        raise ConfigError(
            f"There is no format {name!r}", where="--format", remedy=suggest(name, FORMATS)
        )
    flags = {"input": str(input), "output": str(output_file), "model": str(model), "format": name}
    flags |= {**settings.plain(), **search_options.plain(), **running.plain()}
    flags |= terms.plain() | consistency.plain()
    report = Report("translate-file", output, flags)
    refuse_missing_folder(output_file)
    if output_file.exists() and not force:
        raise UserError(
            "This file exists already", where=str(output_file), remedy="Replace it with --force"
        )
    with open_regular(input) as stream:
        data = stream.read()
    opened = open_document(data, format=name, settings=settings, name=str(input))
    with closing(terminal()) as events:
        translator = _Translator(
            running, model, search_options, terms, consistency, events, languages, settings.split
        )
        translations = translator.translate(
            [sentence.text for sentence in opened.sentences],
            [sentence.alignment for sentence in opened.sentences],
        )
        written = FORMATS[name].write(
            opened, translations, data, settings, str(input), lenient=lenient
        )
    with whole(output_file) as file:
        file.write(written.data)
    say(
        f"{len(opened.sentences):,} different sentences in {opened.passages:,} passages "
        f"translated: {output_file}"
    )
    mended = consistency.counts(translator.consistent)
    say_counts(mended)
    _say_left_out(written.left_out)
    counts = {"passages": opened.passages, "sentences": len(opened.sentences), **mended}
    report.finish({**counts, "left_out": written.left_out})


def _with_languages(
    settings: DocumentSettings, source: str | None, target: str | None
) -> DocumentSettings:
    """Return settings in which the model's languages stand for those that are not given."""
    codes = {"language": source, "target_language": target}
    given = settings.model_fields_set
    return settings.model_copy(
        update={key: code for key, code in codes.items() if code is not None and key not in given}
    )


def _say_left_out(left_out: Sequence[str]) -> None:
    """Say which passages were not translated, and why; of many the first."""
    if left_out:
        say(f"{len(left_out):,} {'passages' if len(left_out) > 1 else 'passage'} left as before:")
    for each in left_out[:_LEFT_OUT_SAID]:
        say(f"  {each}")
    if len(left_out) > _LEFT_OUT_SAID:
        say("  …")


class _Translator:
    """A translator of sentences that reports its progress."""

    def __init__(
        self,
        running: Running,
        model: Path,
        settings: SearchSettings,
        terms: GlossaryFlags,
        consistency: ConsistencyFlags,
        events: Events,
        languages: str | None,
        split: str,
    ) -> None:
        # Mistakes in it are found before the model loads.
        self.glossary = glossary = terms.read(model, languages)
        self.pipeline: TranslationPipeline = running.load(
            model, split=None if split == "sentences" else "lines"
        )
        self.consistent: ConsistentTranslation | None = None
        if consistency.is_on:
            codes = languages_of(model, languages)
            self.pipeline = self.consistent = consistency.applied(self.pipeline, codes)
        if glossary is not None:
            self.pipeline.check_glossary(glossary)
        self.positions = running.positions(self.pipeline, settings)
        self.batch_size = running.batch_size
        self.settings = settings
        self.events = events

    def translate(self, texts: Sequence[str], aligned: Sequence[bool]) -> list[TranslatedSentence]:
        """Translate texts.

        Args:
            texts: sentences to translate.
            aligned: flag of each sentence that asks for a word alignment.
        """
        from heedful.apps.documents.line_up import TranslatedSentence

        done, found = 0, dict[int, TranslatedSentence]()
        for alignment in (False, True):
            numbers = [i for i, wanted in enumerate(aligned) if wanted == alignment]
            translations = self.pipeline.translate(
                [texts[i] for i in numbers],
                settings=self.settings,
                glossary=self.glossary,
                alignment=alignment,
                batch_size=self.batch_size,
                batch_tokens=self.positions,
                # The pipeline counts lines; here they are sentences.
                warn=lambda text: self.events.warn(text.replace("line ", "sentence ")),
                progress=lambda part, _, before=done: self.events.progress(  # type: ignore[misc]
                    before + part, len(texts), "translated"
                ),
            )
            found |= {
                number: TranslatedSentence(str(translation), translation.alignment)
                for number, translation in zip(numbers, translations, strict=True)
            }
            done += len(numbers)
        return [found[number] for number in range(len(texts))]
