"""`heedful translate-file`: translate the text of a document and keep its format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from heedful.apps.documents.document_settings import DocumentSettings
from heedful.cli.flags import (
    CheckFlags,
    ConsistencyFlags,
    GlossaryFlags,
    Running,
    SearchFlags,
    TranslationRequest,
    languages_of,
    say_counts,
    search_settings,
)
from heedful.cli.parser import flags_of, overrides
from heedful.cli.text_io import Output, Report, refuse_missing_folder, say, terminal
from heedful.durable import open_regular, whole
from heedful.errors import ConfigError, UserError, suggest

if TYPE_CHECKING:
    from heedful.apps.documents.line_up import TranslatedSentence
    from heedful.events import Events

    DocumentFlags = Any
else:
    DocumentFlags = flags_of(DocumentSettings, "Document")

_LEFT_OUT_SAID = 10


def translate_file(
    input: Path,
    output_file: Annotated[Path, Parameter(name="OUT")],
    /,
    *,
    model: Path,
    format: str | None = None,
    force: bool = False,
    lenient: bool = False,
    languages: str | None = None,
    document: DocumentFlags | None = None,
    terms: GlossaryFlags = GlossaryFlags(),
    consistency: ConsistencyFlags = ConsistencyFlags(),
    search: SearchFlags | None = None,
    running: Running = Running(),
    output: Output = Output(),
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

    Args:
        input: Document to translate, in one of the formats above.
        output_file: File for the translated document, which appears when it is complete.
        model: Model, run or Hugging Face directory, or the name of a model that comes with Heedful.
        format: Format of the document, such as html; guessed from the file name if unset.
        force: Overwrite OUT if it exists.
        lenient: Leave passages unchanged if their translation would change the structure of the
            document; otherwise such a passage is an error.
        languages: Language codes of source and target, such as en-de, for --numbers and for
            documents that do not declare their languages; taken from the model's name or card if
            unset.
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
    flags = {"input": input, "output": output_file, "model": model, "format": name}
    flags |= {**settings.plain(), **search_options.plain()}
    report = Report("translate-file", output, flags, running, terms, consistency)
    refuse_missing_folder(output_file)
    if output_file.exists() and not force:
        raise UserError(
            "This file exists already", where=str(output_file), remedy="Replace it with --force"
        )
    with open_regular(input) as stream:
        data = stream.read()
    request = TranslationRequest(
        model,
        search_options,
        running,
        checks=CheckFlags(languages=languages),
        terms=terms,
        split=None if settings.split == "sentences" else "lines",
        consistency=consistency,
    )
    opened = open_document(data, format=name, settings=settings, name=str(input))
    with terminal() as events:
        translator = _Translator(request, events)
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
    mended = consistency.counts(translator.pipeline)
    say_counts(mended)
    _say_left_out(written.left_out)
    counts = {"passages": opened.passages, "sentences": len(opened.sentences), **mended}
    report.finish({**counts, "left_out": written.left_out})


def _with_languages(
    settings: DocumentSettings, source: str | None, target: str | None
) -> DocumentSettings:
    """Return settings with the languages of the model where none are set."""
    codes = {"language": source, "target_language": target}
    given = settings.model_fields_set
    return settings.model_copy(
        update={key: code for key, code in codes.items() if code is not None and key not in given}
    )


def _say_left_out(left_out: Sequence[str]) -> None:
    """Print the passages that were not translated, with the reasons; at most ten of them."""
    if left_out:
        say(f"{len(left_out):,} {'passages' if len(left_out) > 1 else 'passage'} left as before:")
    for each in left_out[:_LEFT_OUT_SAID]:
        say(f"  {each}")
    if len(left_out) > _LEFT_OUT_SAID:
        say("  …")


class _Translator:
    """A translator of sentences that reports its progress."""

    def __init__(self, request: TranslationRequest, events: Events) -> None:
        # Read before the model is loaded, so that mistakes are found early.
        self.glossary = request.terms.read(request.model, request.checks.languages)
        self.pipeline = request.load(self.glossary)
        self.positions = request.running.positions(self.pipeline, request.settings)
        self.request = request
        self.events = events

    def translate(self, texts: Sequence[str], aligned: Sequence[bool]) -> list[TranslatedSentence]:
        """Translate texts.

        Args:
            texts: sentences to translate.
            aligned: True for each sentence that needs a word alignment.
        """
        from heedful.apps.documents.line_up import TranslatedSentence

        done, found = 0, dict[int, TranslatedSentence]()
        for alignment in (False, True):
            numbers = [i for i, wanted in enumerate(aligned) if wanted == alignment]
            translations = self.pipeline.translate(
                [texts[i] for i in numbers],
                settings=self.request.settings,
                glossary=self.glossary,
                alignment=alignment,
                batch_size=self.request.running.batch_size,
                batch_tokens=self.positions,
                # The pipeline counts lines, which are sentences here.
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
