"""`heedful translate`: text in, translations out, a line at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from cyclopts import Parameter

from heedful.cli.failures import refuse_missing_folder
from heedful.cli.files import chunks, is_standard, output_to, read_lines
from heedful.cli.output import PLAIN, Output, Report
from heedful.cli.running import STANDARD, Running, SearchFlags, search_settings, terminal
from heedful.cli.translators import Asked, Translators
from heedful.errors import DataError, UserError

if TYPE_CHECKING:
    from heedful.decode.aligned import Alignment
    from heedful.decode.translation import Translation

CHUNK = 4096
"""Lines that are in memory at a time."""


def translate(
    model: Annotated[Path, Parameter(help="A directory of a model, of a run, or of Hugging Face.")],
    /,
    *,
    input: Annotated[
        Path | None,
        Parameter(
            name=("--input", "-i"),
            allow_leading_hyphen=True,
            help="Text, one item a line, plain or gzip; standard input if unset.",
        ),
    ] = None,
    output_file: Annotated[
        Path | None,
        Parameter(
            name=("--output", "-o"),
            allow_leading_hyphen=True,
            help="Where translations go, once all are made; standard output if unset.",
        ),
    ] = None,
    scores: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="A natural-log probability and a tab before each translation.",
        ),
    ] = False,
    alignment: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="A tab and pairs of word numbers (source-target, from 0) after each translation; "
            "with --json, words and weights.",
        ),
    ] = False,
    prefix: Annotated[
        str | None,
        Parameter(allow_leading_hyphen=True, help="Words every translation must begin with."),
    ] = None,
    prefix_file: Annotated[
        Path | None, Parameter(help="The same for each line by itself; empty lines for anyhow.")
    ] = None,
    continuous_batching: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Sentences take the places of those of their batch that are done; the same "
            "translations.",
        ),
    ] = False,
    shortlist: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Faster, not exact: only words on the model's shortlist, which `heedful "
            "shortlist` makes.",
        ),
    ] = False,
    shortlist_file: Annotated[
        Path | None, Parameter(help="The same with a shortlist that is not in the model's folder.")
    ] = None,
    search: SearchFlags | None = None,
    running: Running = STANDARD,
    output: Output = PLAIN,
) -> None:
    """Translate text, a line at a time.

    Every input line gives exactly one output line, an empty line an empty one. Lines that are too
    long for the model are translated in pieces, with a warning. With --n-best, the candidates of a
    line follow each other on its line, separated by tabs.

    For example:

        echo "A man rides a bicycle." | heedful translate run
        heedful translate run -i text.en -o text.de --beam 5
    """
    settings = search_settings(search)
    asked = {
        "model": str(model),
        **settings.plain(),
        **running.plain(),
        "scores": scores,
        "alignment": alignment,
        "continuous_batching": continuous_batching,
        "shortlist": str(shortlist_file) if shortlist_file else shortlist,
    }
    report = Report("translate", output, asked)
    if output_file is not None and not is_standard(output_file):
        refuse_missing_folder(output_file)
    prefixes = _Prefixes(prefix, prefix_file)
    translators = Translators(
        Asked(
            model,
            settings,
            running,
            alignment=alignment,
            prefixes=prefix is not None or prefix_file is not None,
            continuous_batching=continuous_batching,
            shortlist=shortlist_file or shortlist,
        )
    )
    counts = {"lines": 0, "tokens": 0, "cut": 0}
    show = _Show(json=output.json, n_best=settings.n_best > 1, scores=scores, alignment=alignment)
    with closing(terminal()) as events, output_to(output_file) as stream:
        for texts in chunks(input, CHUNK):
            translations = translators.translate(
                texts, prefixes.take(len(texts)), counts["lines"] + 1, events.warn
            )
            show.write(translations, stream)
            counts["lines"] += len(translations)
            counts["tokens"] += sum(len(translation.tokens) for translation in translations)
            counts["cut"] += sum(not translation.finished for translation in translations)
            events.progress(counts["lines"], None, "translated")
        prefixes.finish()
    loaded = translators.load_seconds
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


class _Show:
    """Writes translations, one line each."""

    def __init__(self, *, json: bool, n_best: bool, scores: bool, alignment: bool) -> None:
        self.json = json
        self.n_best = n_best
        self.scores = scores
        self.alignment = alignment

    def write(self, translations: list[Translation], stream: TextIO) -> None:
        for translation in translations:
            line = self._item(translation) if self.json else self._columns(translation)
            assert "\n" not in line
            stream.write(line + "\n")
        stream.flush()

    def _item(self, translation: Translation) -> str:
        item = self._fields(translation)
        if self.n_best:
            item["n_best"] = [self._fields(candidate) for candidate in translation.n_best]
        return json.dumps(item, ensure_ascii=False)

    def _fields(self, translation: Translation) -> dict[str, Any]:
        fields: dict[str, Any] = {"text": str(translation), "score": translation.score}
        if self.alignment:
            fields["alignment"] = _alignment_fields(translation.alignment)
        return fields

    def _columns(self, translation: Translation) -> str:
        if not (self.scores or self.alignment or self.n_best):
            return str(translation)
        columns: list[str] = []
        for candidate in translation.n_best:
            if self.scores:
                columns.append(f"{candidate.score:.4f}")
            columns.append(candidate.replace("\t", " "))
            if self.alignment:
                links = candidate.alignment.links if candidate.alignment is not None else ()
                columns.append(" ".join(f"{source}-{target}" for source, target, _ in links))
        return "\t".join(columns)


def _alignment_fields(alignment: Alignment | None) -> dict[str, Any]:
    if alignment is None:
        return {"source": [], "target": [], "links": [], "weights": []}
    return {
        "source": list(alignment.source_words),
        "target": list(alignment.target_words),
        "links": [[source, target] for source, target, _ in alignment.links],
        "weights": [[round(weight, 4) for weight in row] for row in alignment.matrix],
    }


class _Prefixes:
    """What translations must begin with, taken as lines are read."""

    def __init__(self, text: str | None, file: Path | None) -> None:
        if text is not None and file is not None:
            raise UserError("Give --prefix or --prefix-file, not both", where="heedful translate")
        self.text = text
        self.file = file
        self.lines: Iterator[str] | None = iter(read_lines(file)) if file is not None else None

    def take(self, count: int) -> list[str] | None:
        """For the next lines."""
        if self.lines is None:
            return None if self.text is None else [self.text] * count
        taken = list(islice(self.lines, count))
        if len(taken) < count:
            raise self._out_of_step("has fewer lines than the text")
        return taken

    def finish(self) -> None:
        """Check that none is left."""
        if self.lines is not None and next(self.lines, None) is not None:
            raise self._out_of_step("has more lines than the text")

    def _out_of_step(self, what: str) -> DataError:
        return DataError(
            f"The file of prefixes {what}",
            where=str(self.file),
            remedy="Give one prefix for each line, empty for anyhow",
        )
