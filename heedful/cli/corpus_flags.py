"""Flags of the corpus on which `heads`, `ablate`, `prune` and `align` measure a model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from heedful.cli.flags import DeviceFlag, SearchFlags, search_settings
from heedful.cli.parser import flag_group
from heedful.cli.text_io import read_lines, read_parallel
from heedful.errors import ModelError, UserError

if TYPE_CHECKING:
    from heedful.apps.pruning import AnsweredInput, Bleu
    from heedful.inspect import ModelInput, Subject


@flag_group("Corpus", 20)
class Corpus:
    """Files of text for a model, and the number of texts to read.

    Args:
        source: File of source sentences for a translator, one a line.
        target: File of reference translations, line by line.
        data: Labelled examples for a classifier or tagger, in the format of training; text for
            other models, separated by empty lines or one a line of a .jsonl file.
        limit: Number of texts to read from the start of the files; all if unset.
    """

    source: Path | None = None
    target: Path | None = None
    data: Path | None = None
    limit: int | None = None
    device: DeviceFlag = "auto"

    def load(self, model: Path) -> Subject:
        """Load the model.

        Raises:
            UserError: when the limit leaves no text.
        """
        if self.limit is not None and self.limit < 1:
            raise UserError("At least one text is needed", where=f"--limit {self.limit}")
        from heedful.inspect import load

        return load(model, device=self.device)

    def pairs(self, subject: Subject) -> tuple[list[str], list[str] | None]:
        """Return sources and targets for a translator; targets are None without a target file.

        Raises:
            ModelError: when the model is not a translator.
            UserError: when there is no file of sources.
            DataError: when the files differ in their number of lines.
        """
        if subject.model.spec.reads != "pairs":
            raise ModelError(
                f"This model is no translator; its kind is {subject.model.spec.kind!r}",
                remedy="Give a model that was trained on pairs of texts, or its text by --data",
            )
        if self.source is None or self.data is not None:
            raise UserError(
                "A translator is measured on pairs of texts",
                where="heedful",
                remedy="Give --source FILE --target FILE",
            )
        if self.target is None:
            return read_lines(self.source)[: self.limit], None
        sources, targets = read_parallel(self.source, self.target)
        return sources[: self.limit], targets[: self.limit]

    def readings(self, subject: Subject) -> list[ModelInput]:
        """Return the inputs of the model; for missing targets it translates the sources."""
        from heedful.inspect import read_all

        if self.source is not None:
            return read_all(subject, *self.pairs(subject))
        return [example.reading for example in self.examples(subject)]

    def examples(self, subject: Subject) -> list[AnsweredInput]:
        """Return the texts with their labels or reference translations.

        Raises:
            UserError: when a file that the model needs is missing.
            DataError: for a line that cannot be used.
        """
        from heedful.apps.pruning import examples_of_tags, examples_of_text

        spec = subject.model.spec
        if spec.reads == "pairs" or self.source is not None:
            sources, targets = self.pairs(subject)
            if targets is None:
                raise UserError(
                    "The reference translations are missing", remedy="Give --target FILE"
                )
            return examples_of_text(subject, sources, targets)
        if spec.reads == "images":
            raise ModelError(
                "This command reads no images", remedy="Use heedful.apps.pruning.examples_of_images"
            )
        if self.data is None:
            raise UserError("There is no text", where="heedful", remedy="Give --data FILE")
        from heedful.data.corpus_spec import CorpusSpec
        from heedful.data.text_corpus import DocumentReader, TaggedReader, labelled_reader

        if spec.predicts == "label":
            reader = labelled_reader(CorpusSpec(file=str(self.data)))
            examples = list(islice(reader.examples(), self.limit))
            labels = [example.label for example in examples]
            return examples_of_text(subject, [example.text for example in examples], labels)
        if spec.predicts == "token_label":
            return examples_of_tags(subject, list(islice(TaggedReader(self.data), self.limit)))
        documents = islice(DocumentReader(self.data, "paragraph"), self.limit)
        return examples_of_text(subject, [document.text for document in documents])


@flag_group("BLEU", 30)
class Scoring:
    """Flags of BLEU, for translators.

    Args:
        bleu_sentences: Number of texts to translate for BLEU, from the start of the files; all if
            unset.
        tokenize: Tokenizer of sacreBLEU, such as 13a, zh, ja-mecab or none (for tokenised text);
            auto follows the script of the references.
        lowercase: Ignore upper and lower case in BLEU.
    """

    bleu_sentences: int | None = None
    tokenize: str = "auto"
    lowercase: bool = False

    def bleu(self, search: SearchFlags | None) -> Bleu:
        """Return the BLEU measurement that the flags describe."""
        from heedful.apps.pruning import Bleu

        if self.bleu_sentences is not None and self.bleu_sentences < 1:
            raise UserError(
                "At least one sentence is needed", where=f"--bleu-sentences {self.bleu_sentences}"
            )
        settings = search_settings(search)
        return Bleu(settings, self.bleu_sentences, self.tokenize, self.lowercase)


def head_list(heads: Sequence[str]) -> str:
    """Return names of heads as text, grouped by attention: `decoder.1.self 0 2`."""
    groups: dict[str, list[str]] = {}
    for head in heads:
        place, _, number = head.partition(".head.")
        groups.setdefault(place, []).append(number)
    return ", ".join(f"{place} {' '.join(numbers)}" for place, numbers in groups.items())
