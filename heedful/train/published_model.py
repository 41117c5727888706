"""RUN/model: always the best model so far, and beside it what a low-rank run learned."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heedful.models.checkpoint import load_model, save_model
from heedful.models.model_directory import CONFIG_FILE
from heedful.train.checkpoints import average_checkpoints, whole_models
from heedful.train.lora import ADAPTER_DIRECTORY, Adapter, merged
from heedful.train.model_weights import using
from heedful.train.warm_start import initial_origin

if TYPE_CHECKING:
    from torch import nn

    from heedful.events import Events
    from heedful.text.tokenizer_pair import TokenizerPair
    from heedful.train.checkpoints import CheckpointStore
    from heedful.train.run_settings import RunSettings
    from heedful.train.validation import Scores, Validator


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

    @classmethod
    def of_run(
        cls, run_dir: Path, settings: RunSettings, tokenizers: TokenizerPair | None
    ) -> Publisher:
        """The publisher of a run's directory, settings and tokenizers."""
        origin, grown = initial_origin(settings), settings.tokenizer.extends
        return cls(run_dir / "model", tokenizers, origin=origin, grown=grown)

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
            adapter = Adapter.of(model, self.tokenizers if self.grown else None)
            adapter.save(self.directory.with_name(ADAPTER_DIRECTORY))
        save_model(whole, self.tokenizers, self.directory, training=facts, origin=self.origin)

    def offer(self, model: nn.Module, step: int, kind: str, scores: Scores | None) -> bool:
        """Publish unless the model there scored better on as many sentences.

        Returns:
            True if it was published, as it always is without scores.
        """
        there = self.facts()
        comparable = scores is not None and there.get("sentences") == scores.sentences
        if scores is not None and comparable and there["score"] >= scores.score:
            return False
        self.publish(model, step, kind, scores)
        return True

    def facts(self) -> Mapping[str, Any]:
        """The facts stored with the published model; empty when there is none."""
        try:
            config = json.loads((self.directory / CONFIG_FILE).read_text(encoding="utf-8"))
            facts = config["training"]
        except (OSError, ValueError, KeyError):
            return {}  # nothing published yet, or not whole: it will be written
        return facts if isinstance(facts, dict) else {}


def choose_final_model(
    model: nn.Module,
    store: CheckpointStore,
    publisher: Publisher,
    validator: Validator | None,
    events: Events,
) -> None:
    """Average checkpoints and let the average take RUN/model unless it scores worse.

    Both candidates are judged on all validation sentences. Without validation data the average is
    taken, as the paper does.

    Args:
        model: in eval mode; its weights come back unchanged.
        store: the checkpoints; its settings say which are averaged.
        publisher: of RUN/model.
        validator: None without validation data.
        events: receive the verdict.
    """
    window = whole_models(store.window(), events)
    if validator is not None:
        _judge_fully(model, publisher, validator)
    if len(window) < 2:
        if store.settings.average != "none":
            events.note("There are not yet two checkpoints to average")
        return
    weights = average_checkpoints(window)
    kind = f"average of {len(window)} checkpoints"
    last = window[-1].step
    with using(model, weights):
        if validator is None:
            publisher.publish(model, last, kind, None)
            events.note(f"RUN/model is the {kind}")
            return
        average = validator(model, everything=True)
        single = publisher.facts()
        if average.score >= single["score"]:
            publisher.publish(model, last, kind, average)
    _tell(events, validator, average, single["score"], kind)


def _judge_fully(model: nn.Module, publisher: Publisher, validator: Validator) -> None:
    """Make sure the scores of RUN/model are over all validation sentences."""
    facts = publisher.facts()
    if facts.get("sentences") == validator.sentences(everything=True):
        return
    best, _ = load_model(publisher.directory)
    best.to(next(model.parameters()).device)
    publisher.publish(best, facts["step"], facts["kind"], validator(best, everything=True))


def _tell(events: Events, validator: Validator, average: Scores, single: float, kind: str) -> None:
    name = validator.settings.choose_by
    sign = -1 if name == "loss" else 1
    verdict = "takes" if average.score >= single else "does not take"
    events.note(
        f"The {kind} ({name} {sign * average.score:.4g}) {verdict} the place of the best single "
        f"model ({name} {sign * single:.4g})"
    )
