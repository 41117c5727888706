"""`heedful translate`: translate text line by line, if possible without loading PyTorch."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from heedful.cli.flags import (
    CheckFlags,
    ConsistencyFlags,
    GlossaryFlags,
    ModelPath,
    Running,
    SearchFlags,
    ShardFlags,
    SplitFlag,
    TranslationRequest,
    say_counts,
    search_settings,
)
from heedful.cli.main import uncollected
from heedful.cli.text_io import (
    InputFile,
    OneText,
    Output,
    OutputFile,
    Prefixes,
    Report,
    chunks,
    output_to,
    refuse_missing_folder,
    refuse_text,
    terminal,
)

if TYPE_CHECKING:
    from heedful.apps.quality.reports import TranslationReport
    from heedful.cli.check import CheckedTranslations
    from heedful.pipelines.numpy_translation import NumpyTranslationPipeline
    from heedful.pipelines.text_splitting import Translation, Warn
    from heedful.pipelines.translation import TranslationPipeline

CHUNK = 4096
"""Maximum number of lines in memory."""


def translate(
    model: ModelPath,
    text: OneText = None,
    /,
    *,
    input: InputFile = None,
    output_file: OutputFile = None,
    scores: bool = False,
    alignment: bool = False,
    prefix: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    prefix_file: Path | None = None,
    terms: GlossaryFlags = GlossaryFlags(),
    protect: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    split: SplitFlag = None,
    stream: bool = False,
    shortlist: bool = False,
    shortlist_file: Path | None = None,
    checks: CheckFlags = CheckFlags(),
    consistency: ConsistencyFlags = ConsistencyFlags(),
    search: SearchFlags | None = None,
    running: Running = Running(),
    shards: ShardFlags = ShardFlags(),
    output: Output = Output(),
) -> int | None:
    """Translate a text, or many line by line.

    Every input line gives exactly one output line, and an empty line gives an empty line. If the
    model was trained on single sentences, the sentences of a line are translated one by one
    (--split). Parts that are too long for the model are divided, with a warning. With --n-best, all
    candidates are written to one line, separated by tabs.

    For example:

        heedful translate en-de "A man rides a bicycle."
        heedful translate run -i text.en -o text.de --beam 5
        heedful translate en-de -i text.en --check --json
        heedful translate en-de --shards corpus --out corpus.de --engine ray

    Args:
        input: File of text, one sentence or paragraph a line, plain or gzip; standard input if
            unset.
        output_file: File for the translations, which appears when all are done; standard output if
            unset.
        scores: Write the log-probability (natural) and a tab before each translation.
        alignment: Append a tab and the word alignment (source-target pairs, counted from 0) to each
            translation; with --json, words and weights.
        prefix: Forced beginning (prefix) of every translation.
        prefix_file: File of prefixes, one for each line's translation; an empty line means no
            prefix.
        protect: Kinds of text that are kept byte for byte: all, none, or some of urls, emails,
            tags, markup, code, placeholders, emoji; if unset, the kinds that the model was trained
            to keep, or all.
        stream: Translate each line before reading the next one. Without it, all lines that have
            arrived are translated as a batch, which is faster.
        shortlist: Restrict the output vocabulary to the lexical shortlist of `heedful shortlist`,
            which is faster, but approximate.
        shortlist_file: File of a lexical shortlist outside the model's directory.
    """
    settings = search_settings(search)
    flags: dict[str, Any] = {"scores": scores, "alignment": alignment, "stream": stream}
    flags |= {"shortlist": shortlist_file or shortlist, "protect": protect, "split": split}
    groups = (settings.plain(), running, flags, terms, checks.plain(), consistency)
    report = Report("translate", output, *groups, model=model)
    request = TranslationRequest(
        model,
        settings,
        running,
        alignment=alignment,
        checks=checks,
        consistency=consistency,
        prefixes=prefix is not None or prefix_file is not None,
        shortlist=shortlist_file or shortlist,
        terms=terms,
        protect=None if protect is None else tuple(kind for kind in protect if kind != "none"),
        split=split,
    )
    form = LineFormat(
        json=output.json and not shards.is_on,
        n_best=settings.n_best > 1,
        scores=scores,
        alignment=alignment,
        reports=checks.is_shown,
    )
    if shards.is_on:
        single = {
            "a text": text,
            "--input": input,
            "--output": output_file,
            "--prefix-file": prefix_file,
        }
        fails = checks.on_doubt == "fail"
        shards.refuse(single | {"--stream": stream, "--on-doubt fail": fails})
        return _translate_shards(shards, request, form, prefix, report)
    shards.refuse_alone()
    refuse_missing_folder(output_file)
    refuse_text(text, input, "translate")
    lines, prefixes = TranslatedLines(request, form), Prefixes(prefix, prefix_file)
    done = 0
    with terminal() as events, output_to(output_file) as writable:
        for texts in chunks(input, 1 if stream else CHUNK, text):
            translated = lines.translate(texts, done + 1, events.warn, prefixes.take(len(texts)))
            writable.writelines(f"{line}\n" for line in translated)
            writable.flush()
            done += len(texts)
            events.progress(done, None, "translated")
        prefixes.finish()
        if fault := lines.fault():
            events.warn(fault)
    _finish(lines, report)
    return None


def _finish(lines: TranslatedLines, report: Report) -> None:
    """Report counts and rates of the translated lines."""
    say_counts(counts := lines.totals())
    loaded = lines.translator.load_seconds
    working = max(report.seconds - loaded, 1e-9)
    report.finish(
        {
            **counts,
            "load_seconds": round(loaded, 3),
            "lines_per_second": round(counts["lines"] / working, 2),
            "tokens_per_second": round(counts["tokens"] / working, 1),
        },
        summary=False,
    )
    if lines.translator.checked is not None:
        lines.translator.checked.finish(counts["lines"])


def _translate_shards(
    shards: ShardFlags,
    request: TranslationRequest,
    form: LineFormat,
    prefix: str | None,
    report: Report,
) -> int:
    """Translate a corpus in many files; return the exit status, 1 if some failed."""
    from heedful.apps.shards.ray_workers import RayPool
    from heedful.apps.shards.shard_forms import TableColumns
    from heedful.apps.shards.shard_run import run_shards
    from heedful.apps.shards.shard_translation import ShardJob

    load = partial(TranslatedLines, request, form, prefix)
    columns, threads = TableColumns(shards.column, shards.translation_column), shards.threads or 1
    job = ShardJob(shards.folder(), columns, load, shards.retries, threads, Path.cwd())
    pool = None
    if shards.engine == "ray":
        pool = RayPool(shards.address, shards.actors, threads, shards.actor_gpus or 0.0)
    settings = {"prefix": prefix, "mark": request.checks.mark, "version": report.version}
    with terminal() as events:
        facts = run_shards(shards.shards, job, {**report.settings, **settings}, events, pool)
    say_counts(facts)
    report.finish(facts)
    return 1 if facts["failed"] else 0


@dataclass(frozen=True, kw_only=True)
class LineFormat:
    """The format of a translation on its line.

    Args:
        json, n_best: True to write a JSON object, and all candidates.
        scores, alignment: True to add log-probabilities, and word alignments.
        reports: True to add the reports of checks.
    """

    json: bool
    n_best: bool
    scores: bool
    alignment: bool
    reports: bool

    def line(self, translation: Translation, report: TranslationReport | None) -> str:
        """Return the output line of a translation, without line end."""
        report = report if self.reports else None
        line = self._item(translation, report) if self.json else self._columns(translation, report)
        assert "\n" not in line
        return line

    def _item(self, translation: Translation, report: TranslationReport | None) -> str:
        item = self._fields(translation)
        if report is not None:
            item["report"] = report.plain()
        if self.n_best:
            item["n_best"] = [self._fields(candidate) for candidate in translation.n_best]
        return json.dumps(item, ensure_ascii=False)

    def _fields(self, translation: Translation) -> dict[str, Any]:
        fields: dict[str, Any] = {"text": str(translation), "score": translation.score}
        if translation.missing:
            fields["missing"] = translation.missing
        if translation.untranslated:
            fields["untranslated"] = translation.untranslated
        if self.alignment:
            alignment = translation.alignment
            fields["alignment"] = _NO_ALIGNMENT if alignment is None else alignment.plain()
        return fields

    def _columns(self, translation: Translation, report: TranslationReport | None) -> str:
        if report is None and not (self.scores or self.alignment or self.n_best):
            return str(translation)
        columns: list[str] = []
        for candidate in translation.n_best:
            if self.scores:
                columns.append(f"{candidate.score:.4f}")
            columns.append(candidate.replace("\t", " "))
            if self.alignment:
                links = candidate.alignment.links if candidate.alignment is not None else ()
                columns.append(" ".join(f"{source}-{target}" for source, target, _ in links))
        if report is not None:
            columns.append(",".join(report.failed) or "ok")
        return "\t".join(columns)


_NO_ALIGNMENT: Mapping[str, Any] = {"source": [], "target": [], "links": [], "weights": []}
"""The alignment of an empty line, whose translation is empty."""


class TranslatedLines:
    """A translator that returns output lines of `heedful translate` and counts them.

    Args:
        request: the translator and its options.
        form: format of a line.
        prefix: prefix of every translation that has no individual prefix.

    Raises:
        UserError: when the translator cannot be loaded.
    """

    def __init__(
        self, request: TranslationRequest, form: LineFormat, prefix: str | None = None
    ) -> None:
        self.translator = LazyTranslator(request)
        self._form = form
        self._prefix = prefix
        self._counts = Counter(lines=0, tokens=0, cut=0, required=0, missing=0)
        self._texts = self._empty = 0  # texts with words, and those with an empty translation
        self._before: dict[str, int] = {}

    def translate(
        self,
        texts: Sequence[str],
        first_line: int,
        warn: Warn,
        prefixes: Sequence[str] | None = None,
    ) -> list[str]:
        """Translate each text into an output line without line end.

        Args:
            texts: lines.
            first_line: number of the first line, for warnings.
            warn: receiver of warnings, also of missing glossary terms.
            prefixes: forced prefix of each translation, if any.
        """
        if self._prefix is not None and prefixes is None:
            prefixes = [self._prefix] * len(texts)
        translate = self.translator.choose(texts)
        # The NumPy pipeline has no prefixes; a request with prefixes is not plain.
        options = {} if prefixes is None else {"prefixes": prefixes}
        translations = translate(texts, first_line=first_line, warn=warn, **options)
        reports: list[TranslationReport] | None = None
        if self.translator.checked is not None:
            translations, reports = self.translator.checked.settle(
                texts, translations, first_line, warn
            )
        lines = []
        pairs = zip(translations, reports or repeat(None), strict=False)
        for number, (translation, report) in enumerate(pairs, start=first_line):
            lines.append(self._form.line(translation, report))
            if translation.missing:
                warn(f"line {number}: the translation lacks {'; '.join(translation.missing)}")
        outputs = [
            out.strip() for text, out in zip(texts, translations, strict=True) if text.strip()
        ]
        self._texts += len(outputs)
        self._empty += outputs.count("")
        self._counts.update(
            lines=len(translations),
            tokens=sum(len(each.tokens) for each in translations),
            cut=sum(not each.finished for each in translations),
            required=sum(each.required for each in translations),
            missing=sum(len(each.missing) for each in translations),
        )
        return lines

    def fault(self) -> str | None:
        """Return a warning if most translations so far are empty."""
        if 2 * self._empty <= self._texts:
            return None
        counts = f"{self._empty:,} of {self._texts:,} translations are empty"
        return f"{counts}: the model may need more training"

    def totals(self) -> dict[str, int]:
        """All counts so far, including those of checks and corrected numbers."""
        totals = dict(self._counts)
        if (checked := self.translator.checked) is not None:
            totals |= {"in_doubt": len(checked.doubted), "replaced": checked.replaced}
        consistency = self.translator.request.consistency
        return totals | consistency.counts(self.translator.pipeline)

    def counts(self) -> dict[str, int]:
        """The counts since the previous call."""
        totals, before = self.totals(), self._before
        self._before = totals
        return {name: count - before.get(name, 0) for name, count in totals.items()}


_DIGIT = re.compile(r"[\d₀-₉]")

Translate = Callable[..., "list[Translation]"]
"""Translator of texts; it takes `first_line`, `warn` and perhaps `prefixes` by name."""


class LazyTranslator:
    """A translator that uses NumPy where that is possible and as fast, and otherwise PyTorch.

    Args:
        request: the translator and options.

    Attributes:
        load_seconds: seconds spent on loading so far.
        checked: checker of translations, if a flag of checks is set.
        pipeline: the translator in PyTorch, once it is loaded.
    """

    def __init__(self, request: TranslationRequest) -> None:
        self.request = request
        self.load_seconds = 0.0
        self._full: Translate | None = None
        self._glossary = request.terms.read(request.model, request.checks.languages)
        self.pipeline: TranslationPipeline | None = None
        self.checked: CheckedTranslations | None = None
        self._lean = self._load_lean() if request.is_plain else None
        if self._lean is None:  # load now, so that errors are reported before input is read
            self._full = self._load_full()

    def choose(self, texts: Sequence[str]) -> Translate:
        """Return the faster translator of some texts, loaded when it is first chosen."""
        lean = self._lean
        if lean is not None and lean.serves(texts) and not self._rewrites(lean, texts):
            return partial(lean.translate, settings=self.request.settings)
        if self._full is None:
            self._full = self._load_full()
        return self._full

    def _rewrites(self, lean: NumpyTranslationPipeline, texts: Sequence[str]) -> bool:
        """Return True for texts with numbers or rare names that the model states a form of.

        Others have nothing to correct: their translations are the model's own.
        """
        pair, asked = lean.tokenizers, self.request.consistency
        stated = pair.writing
        if stated is None:
            return False
        if "model" not in (stated.numbers, asked.numbers) and any(map(_DIGIT.search, texts)):
            return True
        return stated.copy_unknown and asked.copy_unknown is not False and pair.loses_words(texts)

    def _load_lean(self) -> NumpyTranslationPipeline | None:
        """Return the NumPy pipeline, or None if it does not support the model or the search."""
        start = time.perf_counter()
        with uncollected():
            from heedful.pipelines.numpy_translation import NumpyTranslationPipeline, searches
        running, pipeline = self.request.running, None
        if searches(self.request.settings):
            pipeline = NumpyTranslationPipeline.load(
                self.request.model,
                device=running.device,
                precision=running.precision,
                split=self.request.split,
                keeps_parts=self.request.protect is None,
            )
        self.load_seconds += time.perf_counter() - start
        return pipeline

    def _load_full(self) -> Translate:
        """Load the PyTorch pipeline, and return its method with the options of the request."""
        request, start = self.request, time.perf_counter()
        self.pipeline = pipeline = request.load(self._glossary)
        positions = request.running.positions(pipeline, request.settings)
        if request.checks.is_on:
            from heedful.cli.check import CheckedTranslations

            self.checked = CheckedTranslations(request, pipeline, self._glossary)
        self.load_seconds += time.perf_counter() - start
        return partial(
            pipeline.translate,
            settings=request.settings,
            glossary=self._glossary,
            protect=request.protect,
            alignment=request.alignment or request.checks.is_on,
            batch_size=request.running.batch_size,
            batch_tokens=positions,
        )
