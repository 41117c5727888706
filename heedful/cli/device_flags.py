"""The flags that say where a model runs and in which precision, for every verb that runs one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from cyclopts import Parameter

DeviceFlag = Annotated[str, Parameter(help="auto, cpu, cuda, cuda:1 or mps.")]
PrecisionFlag = Annotated[
    Literal["auto", "fp32", "bf16", "fp16", "int8"],
    Parameter(
        help="auto is float32 on the fastest route that is as exact. bf16 and int8 are faster on "
        "processors that have them (`heedful doctor`), and change few answers."
    ),
]
BatchTokens = int | Literal["auto"]


def positions_of(asked: BatchTokens, pipeline: Any, beam: int = 1) -> int:
    """The positions of a batch; for `auto` what the machine has room for, which is said.

    Args:
        asked: by the flag.
        pipeline: the loaded model, or several.
        beam: hypotheses of a text.
    """
    if isinstance(asked, int):
        return asked
    from heedful.cli.tables import say
    from heedful.decode.room import room_for

    models = pipeline.models if hasattr(pipeline, "models") else (pipeline.model,)
    room = room_for(models, pipeline.precision, beam=beam)
    say(room.reason)
    return room.positions
