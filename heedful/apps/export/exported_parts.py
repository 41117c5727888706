"""Replacements for parts of a model that is exported as a graph for arbitrary sizes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from heedful.engines.class_exchange import Exchange, Kinds
from heedful.nn.attention.attend import KernelSet
from heedful.nn.attention.kernels import reference
from heedful.nn.attention.kernels.request import Kernel
from heedful.nn.attention.multi_head import CrossAttention, SelfAttention
from heedful.nn.positions import forget_constants


def _definition_alone() -> dict[str, Kernel]:
    return {reference.name: reference}


class ExportedSelfAttention(SelfAttention):
    """Self-attention computed by definition, since a plan would fix the sizes of the graph."""

    kernels = KernelSet(_definition_alone)


class ExportedCrossAttention(CrossAttention):
    """Cross-attention computed by definition."""

    kernels = ExportedSelfAttention.kernels


_KINDS: Kinds = {SelfAttention: ExportedSelfAttention, CrossAttention: ExportedCrossAttention}


@contextmanager
def by_definition(model: nn.Module) -> Iterator[None]:
    """A context for exporters in which attention is computed by definition."""
    try:
        with Exchange(model, _KINDS).made():
            yield
    finally:
        # Constants cached while tracing are symbolic tensors without values.
        forget_constants()
