"""The corpus that `heads`, `ablate`, `prune` and `align` look at a model on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from heedful.cli.device_flags import DeviceFlag
from heedful.cli.files import read_lines
from heedful.cli.running import SearchFlags, search_settings
from heedful.errors import DataError, ModelError, UserError

if TYPE_CHECKING:
    from heedful.inspect import Bleu, Example, Reading, Subject

_GROUP = Group("Corpus", sort_key=20)
_BLEU = Group("BLEU", sort_key=30)


@Parameter(name="*", group=_GROUP)
@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Which texts."""

    source: Annotated[
        Path | None, Parameter(help="Translators: what to translate, a sentence a line.")
    ] = None
    target: Annotated[Path | None, Parameter(help="Its good translations, line by line.")] = None
    data: Annotated[
        Path | None,
        Parameter(
            help="Other models: for a classifier or a tagger examples as for training; for others "
            "texts, with an empty line between them or one a line of a .jsonl file."
        ),
    ] = None
    limit: Annotated[
        int | None, Parameter(help="Only this many, the first ones; all if unset.")
    ] = None
    device: DeviceFlag = "auto"

    def plain(self) -> dict[str, Any]:
        """The flags as JSON data."""
        paths = {"source": self.source, "target": self.target, "data": self.data}
        named = {name: None if path is None else str(path) for name, path in paths.items()}
        return {**named, "limit": self.limit, "device": self.device}

    def load(self, model: Path) -> Subject:
        """The model to look into.

        Raises:
            UserError: when the limit leaves nothing.
        """
        if self.limit is not None and self.limit < 1:
            raise UserError("At least one text is needed", where=f"--limit {self.limit}")
        from heedful.inspect import load

        return load(model, device=self.device)

    def pairs(self, subject: Subject) -> tuple[list[str], list[str] | None]:
        """A translator's sources and, if given, targets.

        Raises:
            UserError: when the model is no translator, or the files are not given.
            DataError: when they are out of step.
        """
        if subject.model.spec.kind != "translator":
            raise ModelError(
                f"This model is no translator; its kind is {subject.model.spec.kind!r}",
                remedy="Give a model that was trained on pairs of texts, or its text by --data",
            )
        if self.source is None or self.data is not None:
            raise UserError(
                "A translator is looked at on pairs of texts",
                where="heedful",
                remedy="Give --source FILE --target FILE",
            )
        sources = read_lines(self.source)
        targets = None if self.target is None else read_lines(self.target)
        if targets is not None and len(targets) != len(sources):
            raise DataError(
                f"{self.source} has {len(sources):,} lines and {self.target} has {len(targets):,}",
                remedy="Give files that correspond line by line",
            )
        return sources[: self.limit], None if targets is None else targets[: self.limit]

    def readings(self, subject: Subject) -> list[Reading]:
        """What the model reads; a translator's own translations where there is no target."""
        from heedful.inspect import read_all

        if self.source is not None:
            return read_all(subject, *self.pairs(subject))
        return [example.reading for example in self.examples(subject)]

    def examples(self, subject: Subject) -> list[Example]:
        """The texts with the right answers.

        Raises:
            UserError: when files that the model needs are not given.
            DataError: naming what cannot be used.
        """
        from heedful.inspect import examples_of_tags, examples_of_text

        kind = subject.model.spec.kind
        if kind == "translator" or self.source is not None:
            sources, targets = self.pairs(subject)
            if targets is None:
                raise UserError("The right translations are missing", remedy="Give --target FILE")
            return examples_of_text(subject, sources, targets)
        if kind == "vision":
            raise ModelError(
                "This command has no images", remedy="Use heedful.inspect.examples_of_images"
            )
        if self.data is None:
            raise UserError("There is no text", where="heedful", remedy="Give --data FILE")
        from heedful.data.documents import DocumentReader
        from heedful.data.labelled import labelled_reader
        from heedful.data.spec import CorpusSpec
        from heedful.data.tagged import TaggedReader

        heads = getattr(subject.model, "heads", {})
        if "sequence" in heads:
            reader = labelled_reader(CorpusSpec(file=str(self.data)))
            found = list(islice(reader.examples(), self.limit))
            labels = [example.label for example in found]
            return examples_of_text(subject, [example.text for example in found], labels)
        if "token" in heads:
            return examples_of_tags(subject, list(islice(TaggedReader(self.data), self.limit)))
        documents = islice(DocumentReader(self.data, "paragraph"), self.limit)
        return examples_of_text(subject, [document.text for document in documents])


CORPUS = Corpus()


@Parameter(name="*", group=_BLEU)
@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How a translator's BLEU is measured."""

    bleu_sentences: Annotated[
        int | None, Parameter(help="Translate only this many, the first ones; all if unset.")
    ] = None
    tokenize: Annotated[
        str, Parameter(help="sacreBLEU's tokenizer; none for text that is tokenised already.")
    ] = "13a"
    lowercase: Annotated[bool, Parameter(negative=(), show_default=False, help="Ignore case.")] = (
        False
    )

    def bleu(self, search: SearchFlags | None) -> Bleu:
        """The measure that the flags ask for."""
        from heedful.inspect import Bleu

        if self.bleu_sentences is not None and self.bleu_sentences < 1:
            raise UserError(
                "At least one sentence is needed", where=f"--bleu-sentences {self.bleu_sentences}"
            )
        settings = search_settings(search)
        return Bleu(settings, self.bleu_sentences, self.tokenize, self.lowercase)


SCORING = Scoring()


def shown_range(score: float, low: float, high: float, digits: int) -> str:
    """A difference with its interval."""
    return f"{score:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def spelled(heads: Sequence[str]) -> str:
    """Addresses of heads in a line, those of one attention together: `decoder.1.self 0 2`."""
    groups: dict[str, list[str]] = {}
    for head in heads:
        place, _, number = head.partition(".head.")
        groups.setdefault(place, []).append(number)
    return ", ".join(f"{place} {' '.join(numbers)}" for place, numbers in groups.items())
