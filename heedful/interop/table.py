"""Two-way tables between our tensors and another project's.

A table is a list of rules, each of which names the tensors it takes on either side. Both directions
come from the same rule, and a tensor that no rule names is an error, whichever side it is on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from heedful.errors import ModelError

_SHOWN = 8

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Rule:
    """Some of their tensors are some of ours in another form.

    Args:
        theirs: their names.
        ours: our names.
        to_ours: their tensors, in the order of `theirs`, to ours, in the order of `ours`.
        to_theirs: the exact inverse.
    """

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    to_ours: Callable[[Sequence[Tensor]], Sequence[Tensor]] = field(repr=False)
    to_theirs: Callable[[Sequence[Tensor]], Sequence[Tensor]] = field(repr=False)


def same(theirs: str, ours: str) -> Rule:
    """The tensor as it is."""
    return Rule((theirs,), (ours,), lambda x: x, lambda x: x)


def transposed(theirs: str, ours: str) -> Rule:
    """A matrix stored the other way round."""

    def turn(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.T.contiguous() for tensor in tensors]

    return Rule((theirs,), (ours,), turn, turn)


def reshaped(theirs: str, ours: str, their_shape: Sequence[int], our_shape: Sequence[int]) -> Rule:
    """The same numbers in the same order under another shape."""
    return Rule(
        (theirs,),
        (ours,),
        lambda x: [x[0].reshape(tuple(our_shape))],
        lambda x: [x[0].reshape(tuple(their_shape))],
    )


def joined(
    theirs: str, ours: Sequence[str], sizes: Sequence[int], *, transpose: bool = False
) -> Rule:
    """One tensor of theirs that holds several of ours below each other.

    Args:
        theirs: its name.
        ours: names, from top to bottom.
        sizes: rows of each of ours.
        transpose: theirs stands the other way round, ours side by side in it.
    """

    def split(tensors: Sequence[Tensor]) -> list[Tensor]:
        whole = tensors[0].T if transpose else tensors[0]
        return [part.contiguous() for part in whole.split(list(sizes))]

    def join(tensors: Sequence[Tensor]) -> list[Tensor]:
        whole = torch.cat(list(tensors))
        return [whole.T.contiguous() if transpose else whole]

    return Rule((theirs,), tuple(ours), split, join)


@dataclass(frozen=True)
class Copy:
    """A tensor of theirs that repeats another of theirs; a file may hold it or leave it out.

    Args:
        name: of the copy.
        of: of the tensor it repeats, which a rule names.
        written: whether an export holds it.
    """

    name: str
    of: str
    written: bool = False


@dataclass(frozen=True)
class Table:
    """All tensors of an architecture.

    Args:
        rules: what becomes what.
        copies: tensors of theirs that only repeat others.
        ignored: regular expressions of whole names of theirs that hold nothing learned, such as
            position numbers and causal masks stored as buffers.
    """

    rules: tuple[Rule, ...]
    copies: tuple[Copy, ...] = ()
    ignored: tuple[str, ...] = ()

    def to_ours(self, theirs: Mapping[str, Tensor], *, where: str) -> Tensors:
        """Their tensors as ours, every one accounted for.

        Args:
            theirs: all tensors of their files.
            where: the files, for the error message.

        Raises:
            ModelError: listing tensors that are missing, unknown, or of a shape that no rule can
                take apart.
        """
        theirs = dict(theirs)
        problems = _Problems()
        for copy in self.copies:
            if copy.of not in theirs and copy.name in theirs:
                theirs[copy.of] = theirs[copy.name]  # some files keep the copy and not the original
            held = theirs.pop(copy.name, None)
            if held is not None and copy.of in theirs and not torch.equal(held, theirs[copy.of]):
                problems.different.append(f"{copy.name} differs from {copy.of}, whose copy it is")
        ours: Tensors = {}
        for rule in self.rules:
            missing = [name for name in rule.theirs if name not in theirs]
            problems.missing += missing
            taken = [theirs.pop(name) for name in rule.theirs if name in theirs]
            if not missing:
                try:
                    ours.update(zip(rule.ours, rule.to_ours(taken), strict=True))
                except RuntimeError:
                    shapes = ", ".join(str(list(tensor.shape)) for tensor in taken)
                    problems.different.append(f"{', '.join(rule.theirs)} of shape {shapes}")
        problems.unknown = [name for name in theirs if not self._ignores(name)]
        problems.check(where)
        return ours

    def to_theirs(self, ours: Mapping[str, Tensor]) -> Tensors:
        """Our tensors as theirs, every one accounted for.

        Raises:
            ModelError: listing tensors no rule names, or that a rule names and are not there.
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
                theirs[copy.name] = theirs[copy.of].clone()
        return theirs

    def _ignores(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)


@dataclass
class _Problems:
    """What does not fit, to be told all at once."""

    missing: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)

    def check(self, where: str) -> None:
        named = {
            "missing": self.missing,
            "unknown": self.unknown,
            "not as expected": self.different,
        }
        found = [f"{what}: {_some(names)}" for what, names in named.items() if names]
        if found:
            raise ModelError(
                f"The tensors are not those of this architecture ({'; '.join(found)})",
                where=where,
                remedy="Check that config.json and the weights belong together",
            )


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
