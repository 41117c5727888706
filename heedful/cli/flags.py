"""Flags that verbs share: models, devices, batches, search, and checks of translations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import Parameter

from heedful.cli.main import uncollected
from heedful.cli.parser import flag_group, flags_of, overrides
from heedful.cli.text_io import say
from heedful.errors import ConfigError, UserError
from heedful.search.search_settings import SearchSettings

if TYPE_CHECKING:
    from heedful.pipelines.glossary import Glossary
    from heedful.pipelines.translation import TranslationPipeline
    from heedful.text.tokenizer_pair import Split

_RAY_ONLY = ("address", "actors", "threads", "actor_gpus")
_LEAST = {"retries": 0, "actors": 1, "threads": 1, "actor_gpus": 0}
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "epsilon")

BatchTokens = int | Literal["auto"]
ModelPath = Annotated[
    Path,
    Parameter(
        help="Model, run or Hugging Face directory, the name of a model that comes with Heedful "
        "(`heedful models`), or OWNER/NAME[@REVISION] of the Hugging Face hub."
    ),
]
DeviceFlag = Annotated[str, Parameter(help="Device to run on: auto, cpu, cuda, cuda:1 or mps.")]
PrecisionFlag = Annotated[
    Literal["auto", "fp32", "bf16", "fp16", "int8"],
    Parameter(
        help="Precision of matmuls. auto is the fastest one as exact as "
        "float32; bf16 and int8 are faster on processors that support them (see "
        "`heedful doctor`) and change few results."
    ),
]
SplitFlag = Annotated[
    Literal["sentences", "lines", "none"] | None,
    Parameter(
        help="Parts of a text that are translated apart: sentences, lines, or none (the whole "
        "text); as the model has learned if unset, which is sentence by sentence for most."
    ),
]


if TYPE_CHECKING:
    SearchFlags = Any
else:
    SearchFlags = flags_of(SearchSettings, "Search")

_Settings = TypeVar("_Settings", bound=SearchSettings)


@flag_group("Checking", 40)
class CheckFlags:
    """Checks of translations; see the guide on checking.

    Args:
        check: Check each translation and append a tab and the names of failed checks, or ok; with
            --json, a report with scores and positions.
        check_source: Also check that the source makes each translation more probable, and so does
            each of its words (slower: a pass of the model for each word).
        languages: Language codes of source and target, such as en-de, for checks of number words
            and language and for --numbers; taken from the model's name or card if unset.
        second_try: Search again where a check failed, with a wider beam and constraints; the new
            translation is used only if fewer checks fail.
        on_doubt: Action for translations with failed checks: keep them, mark them (--mark), write
            the source instead, or fail at the end with exit status 1 and their line numbers.
        mark: Prefix of marked translations, for --on-doubt mark.
    """

    check: bool = False
    check_source: bool = False
    languages: str | None = None

    second_try: bool = False
    on_doubt: Literal["keep", "mark", "source", "fail"] = "keep"
    mark: Annotated[str, Parameter(allow_leading_hyphen=True)] = "[?] "

    @property
    def is_on(self) -> bool:
        """True if translations are checked."""
        return self.is_shown or self.second_try or self.on_doubt != "keep"

    @property
    def is_shown(self) -> bool:
        """True if reports are written."""
        return self.check or self.check_source

    def plain(self) -> dict[str, Any]:
        """The flags as JSON data."""
        return {
            "check": self.is_on,
            "check_source": self.check_source,
            "languages": self.languages,
            "second_try": self.second_try,
            "on_doubt": self.on_doubt,
        }


@flag_group("Consistency", 45)
class ConsistencyFlags:
    """Consistency with the source where models often fail; see the guide on translating.

    Args:
        capitals: Translate sentences in capitals as if in normal case, and write their translations
            in capitals.
        copy_unknown: Copy words with characters that the model's vocabulary lacks, and names that
            it misspells or leaves out. If unset, as the model's directory states: en-de copies
            them.
        numbers: Form of numbers: as the model writes them, as in the source (keep), or with the
            separators of the target language (localize). keep and localize also correct wrong and
            missing numbers. If unset, what the model's directory states, such as localize of en-de,
            else model.
    """

    capitals: bool = False
    copy_unknown: Annotated[bool | None, Parameter(negative="--no-copy-unknown")] = None
    numbers: Literal["model", "keep", "localize"] | None = None

    @property
    def is_on(self) -> bool:
        """True if a flag asks for more than what the model writes."""
        return bool(self.capitals or self.copy_unknown) or self.numbers not in (None, "model")

    def counts(self, translator: TranslationPipeline | None) -> dict[str, int]:
        """Return counts of corrected and of wrong numbers of a translator of these flags."""
        if getattr(translator, "numbers", None) is None:
            return {}
        consistent: Any = translator
        return {"numbers_mended": consistent.mended, "numbers_unmended": consistent.unmended}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GlossaryFlags:
    """Glossary of required translations.

    Args:
        glossary: File of terms and their required translations, one a line: source, tab, target
            (alternatives separated by |), and optionally a tab and flags (keep, ignore-case);
            or a termbase (.tbx).
        glossary_mode: Method for glossary terms: hard forces the search to write each target as
            given; soft shows the first target to a model trained with --soft-terms, which may
            inflect the term.
    """

    glossary: Path | None = None
    glossary_mode: Literal["hard", "soft"] = "hard"

    def read(self, model: Path, languages: str | None) -> Glossary | None:
        """Read the glossary; None without one.

        Args:
            model, languages: arguments of `languages_of`.

        Raises:
            DataError: for a line that is no term.
        """
        if self.glossary is None:
            return None
        from heedful.pipelines.glossary import Glossary, is_termbase

        soft = self.glossary_mode == "soft"
        if not is_termbase(self.glossary):
            return Glossary.read(self.glossary, soft=soft)
        codes = languages_of(model, languages)
        return Glossary.read(self.glossary, soft=soft, languages=codes)


def search_settings(flags: Any) -> SearchSettings:
    """Return search settings from flags; --temperature, --top-k and the like imply sampling."""
    return sampling_settings(flags, SearchSettings)


def sampling_settings(flags: Any, settings: type[_Settings]) -> _Settings:
    """Return settings of a class from flags; --temperature, --top-k and the like imply sampling."""
    values = overrides(flags)
    if any(name in values for name in _SAMPLING):
        values.setdefault("sampling", True)
    return settings.parse(values)


@flag_group("Running", 50)
class Running:
    """Device, precision and batches; of these only precision changes results, in the last digits.

    Args:
        ensemble: Further model whose probabilities are averaged with the first one's; may be
            repeated.
        batch_size: Number of sentences in a batch, instead of --batch-tokens.
        batch_tokens: Size of a batch in tokens: sentences x longest sentence x beam, padding
            included; auto fills the free memory.
    """

    ensemble: tuple[Path, ...] = ()
    device: DeviceFlag = "auto"
    precision: PrecisionFlag = "auto"
    batch_size: int | None = None
    batch_tokens: BatchTokens = 4096

    def load(
        self, model: Path, *, shortlist: bool | Path = False, split: Split | None = None
    ) -> TranslationPipeline:
        """Load the model with the rest of its ensemble; for the options see `heedful.load`."""
        # Garbage collection took a fifth of the time of a cold start, in which PyTorch is loaded.
        with uncollected():
            with suppress(ModuleNotFoundError):
                import torch  # noqa: F401
            from heedful.interop.model_loading import load_any
            from heedful.pipelines.translation import TranslationPipeline
        return TranslationPipeline.load(
            [model, *self.ensemble],
            device=self.device,
            precision=self.precision,
            split=split,
            shortlist=shortlist,
            read=load_any,
        )

    def positions(self, pipeline: Any, settings: SearchSettings | None = None) -> int:
        """Return the number of positions of a batch for this search."""
        return positions_of(self.batch_tokens, pipeline, 1 if settings is None else settings.width)


@flag_group("Shards", 60)
class ShardFlags:
    """Translation of a corpus in many files; see the guide on many machines.

    Args:
        shards: Files, patterns or folders to translate instead of --input: .txt, .tsv or .jsonl,
            plain or .gz, or .parquet. Each becomes a file of the same name in --out.
        out: Folder for the translated shards; finished shards are skipped, so the same command
            continues after an interruption.
        engine: Engine: this process (local), or Ray actors on many machines.
        column: Column of the texts in .parquet, .jsonl and .tsv files; a number from 1 for .tsv
            files without a header.
        translation_column: Column for the translations in the written files.
        retries: Number of new attempts at a shard after failures of its machine (not of its data).
        address: Address of the Ray cluster (HOST:PORT), or auto for the cluster of this machine; if
            unset, Ray starts on this machine alone.
        actors: Number of Ray actors with a model each; as many as fit if unset.
        threads: CPU cores of each Ray actor; 1 if unset.
        actor_gpus: GPUs of each Ray actor, such as 1 or 0.5; none if unset.
    """

    shards: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)] = ()
    out: Path | None = None
    engine: Literal["local", "ray"] = "local"
    column: str = "text"
    translation_column: str = "translation"
    retries: int = 3
    address: str | None = None
    actors: int | None = None
    threads: int | None = None
    actor_gpus: float | None = None

    @property
    def is_on(self) -> bool:
        """True if shards are translated instead of a single text."""
        return bool(self.shards)

    def refuse(self, single: Mapping[str, Any]) -> None:
        """Refuse flags of a single text together with --shards.

        Raises:
            UserError: naming the flags.
        """
        if unfit := [name for name, value in single.items() if value]:
            raise UserError(
                f"--shards and {', '.join(unfit)} exclude each other",
                remedy="Shards come from --shards and go to --out; leave one out",
            )

    def refuse_alone(self) -> None:
        """Refuse flags of shards without --shards.

        Raises:
            UserError: naming the flag.
        """
        for name, value in vars(self).items():
            if value != getattr(ShardFlags(), name):
                raise UserError(
                    f"{_flag(name)} needs --shards",
                    remedy="Name the shards with --shards, or leave it out",
                )

    def folder(self) -> Path:
        """Return the absolute folder of the translations, after a check of all flags.

        Raises:
            ConfigError: when flags contradict each other, or no folder can be made.
        """
        if self.out is None:
            raise ConfigError(
                "--shards needs a folder for the translations", remedy="Name one with --out"
            )
        out = self.out.absolute()
        if not out.parent.is_dir() or (out.exists() and not out.is_dir()):
            raise ConfigError(
                "No folder can be made here",
                where=f"--out {self.out}",
                remedy="Give a folder, or a name for one in a folder that is there",
            )
        for name in () if self.engine == "ray" else _RAY_ONLY:
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"{_flag(name)} needs --engine ray", remedy="Add --engine ray, or leave it out"
                )
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ConfigError(f"{_flag(name)} {value}: it is at least {least}")
        return out


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class TranslationRequest:
    """The translator and the options of a call of `heedful translate`.

    Args:
        model: the model's directory.
        settings: settings of the search.
        running: device, precision and batches.
        alignment: True to return word alignments.
        checks: flags of checks, including the languages.
        prefixes: True if translations have forced prefixes.
        shortlist: True for the model's lexical shortlist, or the file of another shortlist.
        terms: glossary and its mode.
        protect: kinds of text to copy; if unset, those that the model was trained to copy.
        split: parts of a text that are translated separately; the training setting of the model if
            unset.
        consistency: flags of capitals, unknown words and numbers.
    """

    model: Path
    settings: SearchSettings
    running: Running
    alignment: bool = False
    checks: CheckFlags = CheckFlags()
    prefixes: bool = False
    shortlist: bool | Path = False
    terms: GlossaryFlags = GlossaryFlags()
    protect: tuple[str, ...] | None = None
    split: Split | None = None
    consistency: ConsistencyFlags = ConsistencyFlags()

    @property
    def is_plain(self) -> bool:
        """True if the request needs only plain translations of one model."""
        running = self.running
        return (
            not (self.alignment or self.checks.is_on or self.consistency.is_on or self.prefixes)
            and not (self.shortlist or self.terms.glossary or self.protect)
            and not running.ensemble
            and running.batch_size is None
            and running.batch_tokens == Running.batch_tokens
        )

    def load(self, glossary: Glossary | None) -> TranslationPipeline:
        """Load the translator, with the consistency that the flags or the model ask for.

        Args:
            glossary: terms of the request, which are checked.

        Raises:
            UserError: when the translator cannot follow the request.
        """
        pipeline = self.running.load(self.model, shortlist=self.shortlist, split=self.split)
        if glossary is not None:
            pipeline.check_glossary(glossary)
        pipeline.check_protection(self.protect)
        if not self.consistency.is_on and pipeline.tokenizers.writing is None:
            return pipeline
        from heedful.apps.quality.stated_writing import as_stated

        languages = languages_of(self.model, self.checks.languages)
        return as_stated(pipeline, languages=languages, **dataclasses.asdict(self.consistency))


def languages_of(model: Path, words: str | None) -> tuple[str | None, str | None]:
    """Return the language codes of a translator: the given codes, or those of its name or card.

    Args:
        model: directory of the translator.
        words: two codes, such as en-de or pt_BR-zh; None for those of the model.

    Raises:
        UserError: when the words have another form.
    """
    if words is None:
        from heedful.pretrained import catalogue

        return catalogue.languages_of(catalogue.directory_of(model)) or (None, None)
    codes = words.split("-")
    if len(codes) != 2 or not all(code.replace("_", "").isalpha() for code in codes):
        raise UserError(
            f"Languages are written as en-de, not {words!r}",
            where="--languages",
            remedy="Give the code of the source's language, a hyphen, and the target's",
        )
    return codes[0], codes[1]


def positions_of(batch_tokens: BatchTokens, pipeline: Any, beam: int = 1) -> int:
    """Return the number of positions of a batch; `auto` derives it from the free memory.

    Args:
        batch_tokens: value of the flag.
        pipeline: pipeline of one or more loaded models.
        beam: number of hypotheses of a text.
    """
    if isinstance(batch_tokens, int):
        return batch_tokens
    from heedful.apps.planning.memory_budget import fitting_batch

    models = pipeline.engines if hasattr(pipeline, "engines") else (pipeline.engine,)
    budget = fitting_batch(models, pipeline.precision, beam=beam)
    say(budget.reason)
    return budget.positions


def say_counts(counts: Mapping[str, int]) -> None:
    """Print the counts of required phrases found and of corrected numbers."""
    if required := counts.get("required", 0):
        say(
            f"{required - counts['missing']:,} of {required:,} terms and protected parts of the "
            "text are in the translations"
        )
    if counts.get("numbers_mended") or counts.get("numbers_unmended"):
        mended, unmended = counts["numbers_mended"], counts["numbers_unmended"]
        numbers = "number was" if mended == 1 else "numbers were"
        say(f"{mended:,} {numbers} corrected or rewritten; {unmended:,} still disagree")
