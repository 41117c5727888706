"""`heedful data check`, `clean`, `split` and `shard`, for corpora of sentence pairs and texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from heedful.apps.cleaning.cleaning_settings import CleaningSettings, is_memory
from heedful.cli.flags import DeviceFlag, Running
from heedful.cli.parser import flag_group, flags_of, overrides
from heedful.cli.text_io import (
    Output,
    Report,
    refuse_existing,
    say,
    show_table,
    terminal,
    write_lines,
)
from heedful.cli.train import corpora
from heedful.data.corpus_spec import CorpusSpec
from heedful.errors import ConfigError, UserError

if TYPE_CHECKING:
    from heedful.apps.cleaning.check_report import CheckedCorpus, Prepared

    CleaningFlags = Any
else:
    CleaningFlags = flags_of(CleaningSettings, "Rules")

CorpusFiles = Annotated[
    str,
    Parameter(
        help="Corpus: a source and a target file, aligned line by line, or one file of pairs "
        "(.tsv, .csv, .jsonl, .parquet, .arrow, .tar, .tmx) or a folder of such files; all may be "
        ".gz or .zst. Tables are written as .jsonl. A .tmx file may have more languages, of which "
        "--languages names two; it is written as .tsv."
    ),
]


@flag_group("Named fields", 4)
class FieldFlags:
    """Names of the sides in files with named columns or keys.

    Args:
        source_key: Name of the sources, such as en or translation.en; a number, from 1, in .csv
            and .tsv files without a header.
        target_key: Name of the targets.
    """

    source_key: str | None = None
    target_key: str | None = None

    def corpus(
        self, values: Mapping[str, Any], languages: tuple[str, str] | None = None
    ) -> CorpusSpec:
        """Return a corpus with these names.

        Args:
            values: files of the corpus, as `corpora` returns them.
            languages: codes of source and target, by which names are found, too.
        """
        names = {"source_key": self.source_key, "target_key": self.target_key}
        return CorpusSpec(**values, **names, languages=languages)

    def one_corpus(self, files: Sequence[str]) -> CorpusSpec:
        """Return the single corpus that the files form.

        Raises:
            ConfigError: when they form no corpus, or more than one.
        """
        if len(files) == 1 and is_memory(Path(files[0])):
            return CorpusSpec(file=files[0])
        found = corpora(files, "CORPUS")
        if len(found) != 1:
            raise ConfigError(
                f"There are {len(found)} corpora instead of one",
                where=" ".join(files) or "CORPUS",
                remedy="Give a source and a target file, or one .tsv, .jsonl or .tmx file of pairs",
            )
        return self.corpus(found[0])


@flag_group("Comparison data", 5)
class PairCheckFlags:
    """Test data and a model that pairs are compared with.

    Args:
        against: Test and validation corpora, in the format of CORPUS, whose source sentences must
            not occur in it (leaks).
        model: Translator of the two languages, which checks the pairs that pass all other rules;
            slow: about 50 pairs a second on one core.
        workers: Number of processes that apply the rules; the result is the same.
    """

    against: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = ()
    model: Path | None = None
    device: DeviceFlag = "auto"
    workers: int = 1

    def prepare(self, spec: CorpusSpec, settings: CleaningSettings) -> Prepared:
        """Open the corpus, the test data and the model."""
        if self.workers < 1:
            raise UserError("At least one process is needed", where=f"--workers {self.workers}")
        tests = [CorpusSpec(**values) for values in corpora(self.against, "--against")]
        from heedful.apps.cleaning.check_report import prepare

        return prepare(spec, settings, against=tests, scorer=self.scorer(), workers=self.workers)

    def scorer(self) -> Callable[[list[str], list[str]], Sequence[float]] | None:
        """Return a function that scores how much the source raises the probability of the target.

        The probability of a target alone mostly depends on its domain. The gain by the source
        depends less on the domain: at the default limit, 0.3 % of the real pairs in two domains are
        found, and 99 % and 76 % of shuffled pairs.
        """
        if self.model is None:
            return None
        pipeline = Running(device=self.device).load(self.model)

        def score(sources: list[str], targets: list[str]) -> list[float]:
            pairs = pipeline.score([*sources, *["."] * len(targets)], [*targets, *targets])
            means = [each.score / max(1, len(each.token_scores)) for each in pairs]
            with_source, without = means[: len(targets)], means[len(targets) :]
            return [a - b for a, b in zip(with_source, without, strict=True)]

        return score


def data_check(
    *corpus: CorpusFiles,
    out: Path = Path("data-check"),
    fields: FieldFlags = FieldFlags(),
    checks: PairCheckFlags = PairCheckFlags(),
    settings: CleaningFlags | None = None,
    output: Output = Output(),
) -> None:
    """Check sentence pairs for duplicates, misalignments, encoding errors and leaks.

    The report lists, for every rule, its limit, the number of pairs it finds, and examples.
    `heedful data clean` with the same flags removes exactly these pairs.

    For example:

        heedful data check train.en train.de --languages en de
        heedful data check pairs.tsv.gz --against test.tsv --out checked --off numbers
        heedful data check train.en train.de --model run --min-model-gain 1

    Args:
        out: Folder for page.html and report.json, created if missing.
    """
    values = overrides(settings)
    report = Report("data check", output, fields, checks, corpus=corpus, out=out, rules=values)
    limits = CleaningSettings.parse(values, where="heedful data check")
    raw, tools = checks.prepare(fields.one_corpus(corpus), limits)
    out.mkdir(exist_ok=True)
    from heedful.apps.cleaning.check_page import page_of
    from heedful.apps.cleaning.check_report import check_corpus

    with terminal() as events:
        checked = check_corpus(raw, tools, events.progress)
    _show(checked)
    plain = checked.plain()
    write_lines(out / "report.json", [json.dumps(plain, indent=1, ensure_ascii=False)])
    write_lines(out / "page.html", [page_of(checked)])
    say(f"{out / 'page.html'}, {out / 'report.json'}")
    report.finish({"out": str(out), **plain})


def _show(checked: CheckedCorpus) -> None:
    for path, encoding in checked.files.items():
        say(f"{path}: {encoding}")
    _say_languages(checked.languages)
    show_table(
        f"{checked.kept:,} of {checked.pairs:,} pairs would stay",
        ["rule", "finds", "pairs", "would go"],
        [[r.rule, r.about, f"{r.pairs:,}", f"{r.removed:,}"] for r in checked.rules],
        numbers=2,
    )
    if checked.not_applied:
        say(f"not applied: {', '.join(checked.not_applied)}")


def _say_languages(languages: tuple[str, ...] | None) -> None:
    say(f"languages: {' to '.join(languages) if languages else 'not judged'}")


def data_clean(
    *corpus: CorpusFiles,
    out: Path,
    fields: FieldFlags = FieldFlags(),
    checks: PairCheckFlags = PairCheckFlags(),
    settings: CleaningFlags | None = None,
    output: Output = Output(),
) -> None:
    """Clean sentence pairs, and list the removed ones with the reason.

    OUT gets the remaining pairs in the format of the corpus, unchanged and in their order, and
    removed.tsv with the line number of each removed pair and the rules that found it. Rules and
    flags are those of `heedful data check`.

    For example:

        heedful data clean train.en train.de --out clean --languages en de
        heedful data clean pairs.tsv.gz --out clean --against test.tsv --off many_targets

    Args:
        out: Folder for the cleaned corpus, which must not exist.
    """
    values = overrides(settings)
    report = Report("data clean", output, fields, checks, corpus=corpus, out=out, rules=values)
    limits = CleaningSettings.parse(values, where="heedful data clean")
    refuse_existing(out)
    raw, tools = checks.prepare(fields.one_corpus(corpus), limits)
    from heedful.apps.cleaning.corpus_clean import clean_corpus

    with terminal() as events:
        cleaned = clean_corpus(raw, tools, out, events.progress)
    _say_languages(cleaned.languages)
    for rule, count in cleaned.removed.items():
        say(f"{count:,} removed: {rule}")
    say(f"{cleaned.kept:,} of {cleaned.pairs:,} pairs are left: {' and '.join(cleaned.files)}")
    say(f"the others, with their rules: {cleaned.removed_file}")
    report.finish(cleaned.plain())


def data_split(
    *corpus: CorpusFiles,
    out: Path,
    valid: int = 1000,
    test: int = 1000,
    seed: int = 1,
    fields: FieldFlags = FieldFlags(),
    output: Output = Output(),
) -> None:
    """Split sentence pairs into train, valid and test by source sentence.

    All pairs of a source sentence go to one part, even if they differ in case, punctuation or
    spaces. The split depends on the pairs and the seed, not on their order. OUT gets the parts in
    the format of the corpus, with lines unchanged and in their order.

    For example:

        heedful data split corpus.en corpus.de --out parts --valid 1000 --test 2000
        heedful data split pairs.tsv.gz --out parts

    Args:
        out: Folder for the parts, which must not exist.
        valid: Number of pairs for validation; 0 leaves the part out.
        test: Number of pairs for testing; 0 leaves the part out.
        seed: Random seed of the split.
    """
    sizes = {"valid": valid, "test": test}
    report = Report("data split", output, fields, sizes, corpus=corpus, out=out, seed=seed)
    for name, size in sizes.items():
        if size < 0:
            raise UserError("The size of a part must not be negative", where=f"--{name} {size}")
    if valid == test == 0:
        raise UserError("There is nothing to split off", remedy="Give --valid or --test pairs")
    spec = fields.one_corpus(corpus)
    refuse_existing(out)
    from heedful.apps.cleaning.corpus_split import split_corpus

    with terminal() as events:
        parts = split_corpus(spec, out, valid=valid, test=test, seed=seed, progress=events.progress)
    for part in parts:
        files = " and ".join(part.files)
        say(f"{part.name}: {part.pairs:,} pairs of {part.sources:,} sources in {files}")
    report.finish({"parts": [part.plain() for part in parts]})


def data_shard(
    *corpus: str,
    out: Path,
    shard_examples: int = 10_000,
    documents: Literal["file", "paragraph", "line"] | None = None,
    languages: tuple[str, str] | None = None,
    fields: FieldFlags = FieldFlags(),
    output: Output = Output(),
) -> None:
    """Write corpora as compressed shards, which training streams.

    OUT gets index.json and shards, which are gzipped .jsonl corpora. `heedful train RUN --train
    OUT` reads them shard by shard and never holds the whole corpus. Writing takes constant memory,
    and OUT appears only when all of it is written.

    For example:

        heedful data shard train.en train.de --out shards --languages en de
        heedful data shard a.tsv.gz b.jsonl.gz --out shards --shard-examples 20000
        heedful data shard books.txt.gz --documents paragraph --out texts

    Args:
        corpus: Corpora to write: source and target files, aligned line by line, files of pairs
            (.tsv, .csv, .jsonl, .parquet, .arrow, .tar), or files of text with --documents; all may
            be .gz or .zst. Several are joined.
        out: Folder for the shards, which must not exist.
        shard_examples: Maximum number of pairs or texts in a shard; a shard also ends at 16 MB of
            text.
        documents: Unit of text in files for a language model, as for `heedful train`; sentence
            pairs if unset.
        languages: Language codes of source and target, such as en de; training refuses to mix
            shards of both directions.
    """
    flags = {"documents": documents, "languages": languages}
    report = Report(
        "data shard", output, fields, flags, corpus=corpus, out=out, shard_examples=shard_examples
    )
    if shard_examples < 1:
        raise UserError("A shard needs an example", where=f"--shard-examples {shard_examples}")
    found = corpora(corpus, "CORPUS", pairs=documents is None)
    if not found:
        raise ConfigError("There is no corpus", where="CORPUS", remedy="Name its files")
    refuse_existing(out)
    from heedful.apps.shards.shard_writer import write_shards

    with terminal() as events:
        index = write_shards(
            [fields.corpus(values, languages) for values in found],
            out,
            shard_examples=shard_examples,
            unit=documents,
            languages=languages,
            progress=lambda done, total: events.progress(done, total, "written"),
        )
    examples, size = (sum(getattr(s, name) for s in index.shards) for name in ("examples", "bytes"))
    say(f"{examples:,} {index.kind} in {len(index.shards):,} shards, {size / 1e6:,.1f} MB: {out}")
    report.finish({"examples": examples, "shards": len(index.shards), "bytes": size})
