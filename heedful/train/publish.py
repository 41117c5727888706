"""RUN/model: always the best model so far, and beside it what a low-rank run learned."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.models.checkpoint import save_model
from heedful.models.directory import CONFIG_FILE
from heedful.train.adapter import ADAPTER_DIRECTORY, adapter_of
from heedful.train.lora import merged

if TYPE_CHECKING:
    from torch import nn

    from heedful.text.pair import TokenizerPair
    from heedful.train.validation import Scores


class Publisher:
    """Writes the model directory of a run.

    What the directory holds is read from the directory itself, so a resumed run knows it too.

    Args:
        directory: RUN/model.
        tokenizers: saved beside the weights; None for a model of images.
        origin: where an imported model came from that training began with, JSON types.
        grown: whether the tokenizers have more tokens than that model.
    """

    def __init__(
        self,
        directory: Path,
        tokenizers: TokenizerPair | None,
        *,
        origin: Mapping[str, Any] | None = None,
        grown: bool = False,
    ) -> None:
        self.directory = directory
        self.tokenizers = tokenizers
        self.origin = origin
        self.grown = grown

    def publish(self, model: nn.Module, step: int, kind: str, scores: Scores | None) -> None:
        """Write the model.

        Args:
            model: with the weights to write.
            step: updates made.
            kind: `weights`, `moving average` or `average`.
            scores: its validation, if there was one.
        """
        facts: dict[str, Any] = {"step": step, "kind": kind}
        if scores is not None:
            facts |= {"score": scores.score, "sentences": scores.sentences}
            facts |= {"scores": dict(scores.values), "signatures": dict(scores.signatures)}
        whole = merged(model)
        if whole is not model:
            adapter = adapter_of(model, self.tokenizers if self.grown else None)
            adapter.save(self.directory.with_name(ADAPTER_DIRECTORY))
        save_model(whole, self.tokenizers, self.directory, training=facts, origin=self.origin)

    def offer(self, model: nn.Module, step: int, kind: str, scores: Scores) -> bool:
        """Publish unless what is there scored better on as many sentences; whether it did."""
        there = self.facts()
        comparable = there.get("sentences") == scores.sentences
        if comparable and there["score"] >= scores.score:
            return False
        self.publish(model, step, kind, scores)
        return True

    def facts(self) -> Mapping[str, Any]:
        """What is known of the published model; empty when there is none."""
        try:
            config = json.loads((self.directory / CONFIG_FILE).read_text(encoding="utf-8"))
            facts = config["training"]
        except (OSError, ValueError, KeyError):
            return {}  # nothing published yet, or not whole: it will be written
        return facts if isinstance(facts, dict) else {}
