"""Tables that convert tensors between our names and layouts and those of another project.

A table is a list of rules, each of which names the tensors on both sides. Both directions come from
the same rule, and a tensor that no rule names is an error on either side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from heedful.errors import ModelError

AFFINE = ("weight", "bias")
LINEAR = ("weight",)

_MAX_NAMES = 8

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Rule:
    """Conversion between some tensors of theirs and some of ours.

    Args:
        theirs: names of their tensors.
        ours: names of our tensors.
        to_ours: function from their tensors, in the order of `theirs`, to ours, in the order of
            `ours`.
        to_theirs: exact inverse of `to_ours`.
    """

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    to_ours: Callable[[Sequence[Tensor]], Sequence[Tensor]] = field(repr=False)
    to_theirs: Callable[[Sequence[Tensor]], Sequence[Tensor]] = field(repr=False)


def same(theirs: str, ours: str) -> Rule:
    """Return the rule for a tensor with the same layout on both sides."""
    return Rule((theirs,), (ours,), lambda x: x, lambda x: x)


def renamed(
    modules: Mapping[str, str],
    *,
    theirs: str = "",
    ours: str = "",
    parts: Sequence[str] = AFFINE,
) -> list[Rule]:
    """Return rules for modules whose tensors differ in their names only.

    Args:
        modules: our name of each module by their name.
        theirs, ours: prefixes of all names of modules.
        parts: names of a module's tensors, AFFINE or LINEAR.
    """
    return [
        same(f"{theirs}{their_name}.{part}", f"{ours}{our_name}.{part}")
        for their_name, our_name in modules.items()
        for part in parts
    ]


def transposed(theirs: str, ours: str) -> Rule:
    """Return the rule for a matrix that they store transposed."""

    def transpose(tensors: Sequence[Tensor]) -> list[Tensor]:
        # A view would keep the other layout's strides, and safetensors stores contiguous tensors
        # only.
        return [tensor.T.contiguous() for tensor in tensors]

    # A transposition is its own inverse.
    return Rule((theirs,), (ours,), transpose, transpose)


def repeated(theirs: str, ours: Sequence[str], instead: str = "bert has own layers") -> Rule:
    """Return the rule for a tensor of theirs that several modules of ours have the values of.

    Args:
        theirs: name of their tensor.
        ours: names of our tensors.
        instead: an architecture that has a tensor for each module, for the error message.
    """

    def one(tensors: Sequence[Tensor]) -> list[Tensor]:
        # Training moves them apart; a mean would be another model.
        if not all(torch.equal(tensors[0], tensor) for tensor in tensors[1:]):
            raise ModelError(
                f"{' and '.join((*ours[:2], *ours[2:][-1:]))} differ, and are one tensor there",
                where="the model to export",
                remedy=f"Export it in the form of another architecture ({instead})",
            )
        return [tensors[0]]

    # Clones, so that a training does not change one through another.
    return Rule((theirs,), tuple(ours), lambda x: [x[0].clone() for _ in ours], one)


def reshaped(theirs: str, ours: str, their_shape: Sequence[int], our_shape: Sequence[int]) -> Rule:
    """Return the rule for a tensor with another shape and the same order of elements."""
    return Rule(
        (theirs,),
        (ours,),
        lambda x: [x[0].reshape(tuple(our_shape))],
        lambda x: [x[0].reshape(tuple(their_shape))],
    )


def concatenated(
    theirs: str, ours: Sequence[str], sizes: Sequence[int], *, transpose: bool = False
) -> Rule:
    """Return the rule for a tensor of theirs that concatenates several of ours, e.g. q, k and v.

    Args:
        theirs: name of their tensor.
        ours: names of our tensors, from top to bottom.
        sizes: numbers of rows of our tensors.
        transpose: flag of a tensor that is stored as [in, out], with ours side by side.
    """

    def split(tensors: Sequence[Tensor]) -> list[Tensor]:
        whole = tensors[0].T if transpose else tensors[0]
        return [part.contiguous() for part in whole.split(list(sizes))]

    def concatenate(tensors: Sequence[Tensor]) -> list[Tensor]:
        whole = torch.cat(list(tensors))
        return [whole.T.contiguous() if transpose else whole]

    return Rule((theirs,), tuple(ours), split, concatenate)


@dataclass(frozen=True)
class RepeatedTensor:
    """A tensor of theirs that repeats another, e.g. a tied output projection; files may omit it.

    Args:
        name: name of the copy.
        original: name of the repeated tensor, which a rule converts.
        written: flag of a copy that exports contain.
    """

    name: str
    original: str
    written: bool = False


def output_projection(name: str, tied_to: str | None) -> tuple[list[Rule], list[RepeatedTensor]]:
    """Return the rule of an output projection, or the copy that it is if it is tied.

    Args:
        name: name of their tensor.
        tied_to: name of their embedding table that it repeats; None for a table of its own.
    """
    if tied_to is None:
        return [same(name, "output_projection.weight")], []
    return [], [RepeatedTensor(name, tied_to)]


@dataclass(frozen=True)
class Table:
    """All tensors of an architecture.

    Args:
        rules: conversions of all trained tensors.
        copies: tensors of theirs that only repeat others.
        ignored: regular expressions of full names of their tensors without trained values, such as
            position ids and causal masks stored as buffers.
    """

    rules: tuple[Rule, ...]
    copies: tuple[RepeatedTensor, ...] = ()
    ignored: tuple[str, ...] = ()

    def changed(self, pattern: str, rules: Sequence[Rule]) -> Table:
        """Return a table with rules in the place of those for our names that match a pattern."""
        kept = [rule for rule in self.rules if not any(re.search(pattern, n) for n in rule.ours)]
        return replace(self, rules=(*kept, *rules))

    def their_names(self) -> list[str]:
        """Return the names of all tensors of theirs that the rules convert."""
        return [name for rule in self.rules for name in rule.theirs]

    def to_ours(self, theirs: Mapping[str, Tensor], *, where: str) -> Tensors:
        """Convert all tensors of theirs to ours.

        Args:
            theirs: all tensors of their files.
            where: name of the files, for the error message.

        Raises:
            ModelError: when tensors are missing, unknown, or have a shape that a rule cannot
                convert; they are listed.
        """
        theirs = dict(theirs)
        problems = _Problems()
        for copy in self.copies:
            if copy.original not in theirs and copy.name in theirs:
                # Writers of safetensors keep one of two tied tensors, in some files the copy.
                theirs[copy.original] = theirs[copy.name]
            stored_copy = theirs.pop(copy.name, None)
            # If tied tensors differ, either choice would give a wrong model.
            if (
                stored_copy is not None
                and copy.original in theirs
                and not torch.equal(stored_copy, theirs[copy.original])
            ):
                problems.different.append(
                    f"{copy.name} differs from {copy.original}, whose copy it is"
                )
        ours: Tensors = {}
        for rule in self.rules:
            missing = [name for name in rule.theirs if name not in theirs]
            problems.missing += missing
            taken = [theirs.pop(name) for name in rule.theirs if name in theirs]
            if not missing:
                try:
                    ours.update(zip(rule.ours, rule.to_ours(taken), strict=True))
                # PyTorch's error of a reshape or split that the tensor's shape does not allow.
                except RuntimeError:
                    shapes = ", ".join(str(list(tensor.shape)) for tensor in taken)
                    problems.different.append(f"{', '.join(rule.theirs)} of shape {shapes}")
        problems.unknown = [name for name in theirs if not self._ignores(name)]
        problems.check(where)
        return ours

    def to_theirs(self, ours: Mapping[str, Tensor]) -> Tensors:
        """Convert all tensors of ours to theirs.

        Raises:
            ModelError: when no rule names a tensor, or a tensor of a rule is missing; they are
                listed.
        """
        ours = dict(ours)
        problems = _Problems()
        theirs: Tensors = {}
        for rule in self.rules:
            missing = [name for name in rule.ours if name not in ours]
            problems.missing += missing
            taken = [ours.pop(name) for name in rule.ours if name in ours]
            if not missing:
                theirs.update(zip(rule.theirs, rule.to_theirs(taken), strict=True))
        problems.unknown = sorted(ours)
        problems.check("the model to export")
        for copy in self.copies:
            if copy.written:
                # Safetensors refuses tensors that share memory.
                theirs[copy.name] = theirs[copy.original].clone()
        return theirs

    def _ignores(self, name: str) -> bool:
        # Patterns match full names, so that a pattern for a buffer cannot hide a trained tensor.
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)


@dataclass
class _Problems:
    """Tensors that do not fit, collected for one message about all of them."""

    missing: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)

    def check(self, where: str) -> None:
        lists = {
            "missing": self.missing,
            "unknown": self.unknown,
            "not as expected": self.different,
        }
        problems = [f"{label}: {first_names(names)}" for label, names in lists.items() if names]
        if problems:
            raise ModelError(
                f"The tensors are not those of this architecture ({'; '.join(problems)})",
                where=where,
                remedy="Check that config.json and the weights belong together",
            )


def prefix_of(names: Collection[str], prefix: str) -> str:
    """Return a prefix if any name begins with it or there are no names, else an empty string."""
    # Files saved from a base model lack the prefix that the class with a head adds.
    return prefix if not names or any(name.startswith(prefix) for name in names) else ""


def first_names(names: Sequence[str]) -> str:
    """Return the first few names and the number of the others, as text."""
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
