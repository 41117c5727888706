"""The end of a run: is the average of checkpoints better than the best single model?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heedful.models.checkpoint import load_model
from heedful.train.averaging import average_checkpoints, using
from heedful.train.checkpoints import whole_models

if TYPE_CHECKING:
    from torch import nn

    from heedful.events import Events
    from heedful.train.checkpoints import CheckpointStore
    from heedful.train.publish import Publisher
    from heedful.train.validation import Scores, Validator


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
        events: who is told which one won.
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
