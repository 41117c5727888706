"""The flags that say where a model runs and in which precision, for every verb that runs one."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

DeviceFlag = Annotated[str, Parameter(help="auto, cpu, cuda, cuda:1 or mps.")]
PrecisionFlag = Annotated[
    Literal["auto", "fp32", "bf16", "fp16", "int8"],
    Parameter(
        help="auto is float32 on the fastest route that is as exact. bf16 and int8 are faster on "
        "processors that have them (`heedful doctor`), and change few answers."
    ),
]
