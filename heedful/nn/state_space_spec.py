"""Specs of the mixers with a state of constant size: state spaces and RWKV. No torch here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from heedful.config import Config, PositiveInt


class AnyWidthSpec(Config):
    """A part that fits every model width."""

    def check_width(self, width: int) -> None:
        """Accept any model width."""


class S4DSpec(AnyWidthSpec):
    """A diagonal state space of each channel, the same for every token (Gu 2022)."""

    kind: Literal["s4d"] = "s4d"
    state_size: Annotated[int, Field(ge=2, multiple_of=2)] = Field(
        64, description="numbers that a channel remembers, as half as many complex ones"
    )
    initialization: Literal["lin", "inv"] = Field(
        "lin", description="frequencies of the states at first: evenly spaced, or by inverses"
    )
    discretization: Literal["zoh", "bilinear"] = Field(
        "zoh", description="from continuous time to tokens: zero-order hold, or bilinear (Tustin)"
    )
    bias: bool = True


class MambaSpec(AnyWidthSpec):
    """A selective state space: what is kept and read follows from the token (Gu and Dao 2023)."""

    kind: Literal["mamba"] = "mamba"
    state_size: PositiveInt = Field(16, description="numbers that a channel remembers")
    expansion: PositiveInt = Field(2, description="inner width in model widths")
    convolution: PositiveInt = Field(4, description="tokens that the convolution before it sees")
    rank: PositiveInt | None = Field(
        None, description="numbers that a token's step sizes follow from; width / 16 if unset"
    )
    bias: bool = Field(False, description="of the maps into it and out of it")


class RWKVSpec(AnyWidthSpec):
    """RWKV version 4's time mixing: an average of values that fades with time (Peng 2023)."""

    kind: Literal["rwkv"] = "rwkv"


class ChannelMixSpec(AnyWidthSpec):
    """RWKV version 4's network: squared ReLU behind a gate, of a token and the one before it."""

    kind: Literal["channel_mix"] = "channel_mix"
    width: PositiveInt
