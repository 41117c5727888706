"""The influence of tokens on each other in a block, for the page "Attention"."""

from __future__ import annotations

from typing import Any

from heedful.apps.studio.page import LastLayer, StackRequest, call, read_text, round_digits
from heedful.apps.studio.workspace import Workspace
from heedful.errors import DataError
from heedful.inspect.attention_maps import attention, parts_of, rows_and_columns
from heedful.inspect.attention_maps import attentions as attentions_of
from heedful.inspect.silent_tokens import influence as measure
from heedful.inspect.subject import stack_of

LONGEST = 128
"""Maximum number of tokens of a text, since the mixer is computed once for each token."""


class InfluenceRequest(StackRequest):
    """A text, and the block whose mixer to measure."""

    block: LastLayer = -1


@call(InfluenceRequest)
def influence(request: InfluenceRequest, workspace: Workspace) -> dict[str, Any]:
    """Return how much each token's output changes without another token, and attention weights.

    Attention weights are means over heads; null where the mixer has none.
    """
    subject, reading = read_text(request, workspace)
    stack: Any = request.stack or reading.last_stack
    stack_of(subject.model, stack)
    tokens, _ = rows_and_columns(reading, stack)
    if len(tokens) > LONGEST:
        raise DataError(
            f"{len(tokens)} tokens are more than the {LONGEST} that can be left out one by one",
            where="text",
            remedy="Shorten it, or call heedful.inspect.influence",
        )
    found = measure(subject, reading, stack, request.block)
    weights = None
    if stack in parts_of(subject.model):
        addresses = [*attentions_of(subject.model, stack)]
        if found.address in addresses:
            layer = addresses.index(found.address)
            weights = attention(subject, reading, stack, layers=[layer]).mean()
    spec = subject.model.spec.stacks()[stack].blocks[found.layer]
    about = next(each.part.headline() for each in spec.sublayers if each.part.kind == found.kind)
    before, after = found.by_distance.tolist()
    return {
        "stacks": {name: len(each.blocks) for name, each in subject.model.stacks().items()},
        "stack": stack,
        "block": found.layer,
        "address": found.address,
        "kind": found.kind.replace("_", " "),
        "about": about,
        "pieces": list(found.tokens),
        "changes": round_digits(found.changes),
        "before": before,
        "after": after,
        "weights": None if weights is None else round_digits(weights),
    }
