"""RUN/model, the best model of a run so far, and the adapter of a low-rank run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from heedful.events import Events
from heedful.models.checkpoint import load_model, save_model
from heedful.models.model_directory import CONFIG_FILE
from heedful.text.tokenizer_pair import TokenizerPair
from heedful.train.checkpoints import CheckpointStore, average_checkpoints, whole_models
from heedful.train.lora import ADAPTER_DIRECTORY, Adapter, merged
from heedful.train.model_weights import using
from heedful.train.run_settings import RunSettings
from heedful.train.validation import Scores, Validator
from heedful.train.warm_start import initial_origin


class Publisher:
    """Writes the model directory of a run.

    Facts about the published model are read from the directory, so a resumed run knows them too.

    Args:
        directory: RUN/model.
        tokenizers: tokenizers to save beside the weights; None for a model of images.
        origin: origin of the imported initial model, as JSON types; None for other models.
        grown: true if the tokenizers have more tokens than the initial model.
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
        """Make the publisher for a run's directory, settings and tokenizers."""
        origin, grown = initial_origin(settings), settings.tokenizer.extends
        return cls(run_dir / "model", tokenizers, origin=origin, grown=grown)

    def publish(self, model: nn.Module, step: int, kind: str, scores: Scores | None) -> None:
        """Write the model.

        Args:
            model: model with the weights to write.
            step: number of updates made.
            kind: `weights`, `moving average` or `average`.
            scores: validation scores; None without validation.
        """
        facts: dict[str, Any] = {"step": step, "kind": kind}
        if scores is not None:
            facts |= scores.facts()
        whole = merged(model)
        if whole is not model:
            # Unless the vocabulary grew, the base model's tokenizers serve, and the adapter stays
            # small.
            adapter = Adapter.of(model, self.tokenizers if self.grown else None)
            adapter.save(self.directory.with_name(ADAPTER_DIRECTORY))
        save_model(whole, self.tokenizers, self.directory, training=facts, origin=self.origin)

    def offer(self, model: nn.Module, step: int, kind: str, scores: Scores | None) -> bool:
        """Publish the model unless the published one scored at least as well.

        Returns:
            True if it was published; without scores it always is.
        """
        there = self.facts()
        # Scores of different numbers of sentences are not comparable; the newer model wins then.
        comparable = scores is not None and there.get("sentences") == scores.sentences
        if scores is not None and comparable and _rank(there) >= _rank(scores.facts()):
            return False
        self.publish(model, step, kind, scores)
        return True

    def facts(self) -> Mapping[str, Any]:
        """Return the facts stored with the published model; empty when there is none."""
        try:
            config = json.loads((self.directory / CONFIG_FILE).read_text(encoding="utf-8"))
            facts = config["training"]
        except (OSError, ValueError, KeyError):
            return {}  # missing or damaged: the next offer is published
        return facts if isinstance(facts, dict) else {}


def choose_final_model(
    model: nn.Module,
    store: CheckpointStore,
    publisher: Publisher,
    validator: Validator | None,
    events: Events,
) -> None:
    """Average the checkpoints and publish the average unless it scores worse.

    Both candidates are scored on all validation sentences. Without validation data the average is
    published, as in Vaswani 2017, section 6.1.

    Args:
        model: model in eval mode; its weights are the same afterwards.
        store: checkpoints of the run; its settings select those to average.
        publisher: publisher of RUN/model.
        validator: validator of the run; None without validation data.
        events: receivers of the verdict.
    """
    window = whole_models(store.window(), events)
    # Scored before the averaging, as the best model may have been scored on some sentences only.
    if validator is not None:
        _judge_fully(model, publisher, validator)
    if len(window) < 2:
        if store.settings.average != "none":
            events.note(
                f"RUN/model is no average: that takes 2 checkpoints, and there are {len(window)} "
                f"(one every {store.settings.every_steps:,} updates: checkpoint.every_steps)"
            )
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
        # Ties go to the average: its weights depend less on the last few batches.
        is_taken = _rank(average.facts()) >= _rank(single)
        if is_taken:
            publisher.publish(model, last, kind, average)
    name = validator.settings.choose_by
    # A score is larger when better, so a loss is stored negated.
    sign = -1 if name == "loss" else 1
    verdict = "takes" if is_taken else "does not take"
    events.note(
        f"The {kind} ({name} {sign * average.score:.4g}) {verdict} the place of the best single "
        f"model ({name} {sign * single['score']:.4g})"
    )


def _rank(facts: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return the values that rank a model: its score, and among equal scores chrF, then the loss.

    BLEU is 0 for all early models of a run, and 100 for the last ones of a toy.
    """
    scores = facts.get("scores", {})
    return facts["score"], scores.get("chrf", 0.0), -scores.get("loss", math.inf)


def _judge_fully(model: nn.Module, publisher: Publisher, validator: Validator) -> None:
    """Score RUN/model on all validation sentences unless that has been done."""
    facts = publisher.facts()
    if facts.get("sentences") == validator.sentences(everything=True):
        return
    # The best model so far may be thousands of updates old: only the directory still has it.
    best, _ = load_model(publisher.directory)
    best.to(next(model.parameters()).device)
    publisher.publish(best, facts["step"], facts["kind"], validator(best, everything=True))
