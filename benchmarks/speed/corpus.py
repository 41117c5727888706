"""Multi30k as the contestants get it: the texts, and the very batches that Heedful trains on."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heedful.models.model_spec import TranslatorSpec
    from heedful.text.tokenizer_pair import TokenizerPair

PIECES = 10_000
BATCH_TOKENS = 4096


def raw_file(data: Path, part: str, language: str) -> Path:
    """A part of the raw, cased corpus."""
    return data / "multi30k" / "raw" / f"{part}.{language}.gz"


def sentences(path: Path) -> list[str]:
    """The lines of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line.rstrip("\n") for line in file]


def run_settings(
    data: Path,
    cache: Path,
    precision: str,
    *,
    device: str = "cpu",
    batch_tokens: int = BATCH_TOKENS,
) -> dict[str, Any]:
    """Settings of a training run, beside those of its preset.

    The peers have dropout in the same places. No checkpoint is written while times are taken.
    """
    never = 10**9
    return {
        "max_steps": 10**6,
        "precision": precision,
        "device": device,
        "model": {"dropout": 0.1},
        "tokenizer": {"vocabulary_size": PIECES},
        "data": {
            "train": [{side: str(raw_file(data, "train", language)) for side, language in SIDES}],
            "batch_tokens": batch_tokens,
            "cache": str(cache),
        },
        "optimizer": {"clip_norm": 1.0},
        "checkpoint": {"every_steps": never, "average": "none"},
    }


SIDES = (("source", "en"), ("target", "de"))


@dataclass(frozen=True)
class Batches:
    """The first batches of a run.

    Args:
        pairs: token ids of source and target without special tokens, [batch][side][sentence].
        spec: of the model.
        tokenizers: made from the corpus.
        target_positions: of each batch, padding counted.
    """

    pairs: list[list[list[list[int]]]]
    spec: TranslatorSpec
    tokenizers: TokenizerPair
    target_positions: list[int]

    def tokens(self, first: int, count: int) -> int:
        """Target tokens of some batches, their end tokens counted, padding not."""
        return sum(
            len(row) + 1 for _, targets in self.pairs[first : first + count] for row in targets
        )

    def positions(self, first: int, count: int) -> int:
        """Target positions of some batches, padding counted."""
        return sum(self.target_positions[first : first + count])

    def operations(self, first: int, count: int) -> int:
        """Floating-point operations to learn from some batches, padding not counted."""
        from heedful.models.cost import training_cost

        return sum(
            training_cost(self.spec, len(source) + 1, len(target) + 1).total.total
            for sources, targets in self.pairs[first : first + count]
            for source, target in zip(sources, targets, strict=True)
        )

    def write(self, path: Path) -> None:
        """Leave them where a peer reads them."""
        target = self.tokenizers.target
        special = {"pad": target.pad, "bos": target.bos, "eos": target.eos}
        path.write_text(json.dumps({**special, "batches": self.pairs}), encoding="utf-8")


def first_batches(preset: str, settings: dict[str, Any], run: Path, number: int) -> Batches:
    """So many batches that a run with these settings begins with, of as many epochs as it takes."""
    from heedful.events import Events
    from heedful.models.shape_to_spec import translator_spec
    from heedful.train.run_config import resolve_settings
    from heedful.train.task import prepare_task

    resolved = resolve_settings(preset, None, settings)
    run.mkdir(parents=True, exist_ok=True)
    task = prepare_task(run, resolved, None, Events())
    assert task.tokenizers is not None
    batches, positions = [], []
    for batch in islice(_in_order(task.source), number):
        sides = (
            (batch.source, batch.source_positions, batch.source_segments),
            (batch.target_output, batch.target_positions, batch.target_segments),
        )
        batches.append([_ids(*side) for side in sides])
        positions.append(batch.target_output.numel())
    sizes = task.tokenizers.source.size, task.tokenizers.target.size
    return Batches(batches, translator_spec(resolved.model, *sizes), task.tokenizers, positions)


def _in_order(source: Any) -> Iterator[Any]:
    """All batches of a run, epoch by epoch."""
    for epoch in count():
        for number in range(source.count(epoch)):
            yield source.batch(epoch, number)


def _ids(ids: Any, positions: Any, segments: Any) -> list[list[int]]:
    """Sentences without their padding and their end tokens; those of a packed row one by one."""
    found: list[list[int]] = []
    for number, row in enumerate(ids):
        numbers = segments[number] if segments is not None else (positions[number] >= 0).long() - 1
        for sentence in range(int(numbers.max()) + 1):
            found.append(row[numbers == sentence].tolist()[:-1])
    return found


def marian_shape(spec: TranslatorSpec) -> dict[str, Any]:
    """The fields of a MarianConfig that computes the same."""
    from heedful.interop.architectures.translators.marian import ARCHITECTURE

    names = ("pad_token_id", "eos_token_id", "decoder_start_token_id", "model_type")
    return {
        k: v
        for k, v in ARCHITECTURE.write_config(spec).items()
        if k not in (*names, "architectures")
    }
