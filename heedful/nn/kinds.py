"""Names of the kinds there are of some parts, apart from the settings of those parts.

The command line makes flags of them, and need not load all the rest for that.
"""

from __future__ import annotations

from typing import Literal

PlainActivation = Literal["relu", "gelu", "gelu_tanh", "silu"]
Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu", "geglu_tanh", "reglu"]

GATED: dict[Activation, PlainActivation] = {
    "swiglu": "silu",
    "geglu": "gelu",
    "geglu_tanh": "gelu_tanh",
    "reglu": "relu",
}
"""What the gate of a gated form goes through."""
