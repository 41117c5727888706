"""Two-way tables between our tensors and another project's.

A table is a list of rules, each of which names the tensors it takes on either side. Both directions
come from the same rule, and a tensor that no rule names is an error, whichever side it is on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from heedful.errors import ModelError

AFFINE = ("weight", "bias")
LINEAR = ("weight",)

_MAX_NAMES = 8

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Rule:
    """The rule that turns some of their tensors into some of ours and back.

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
    """Take a tensor as it is."""
    return Rule((theirs,), (ours,), lambda x: x, lambda x: x)


def renamed(
    modules: Mapping[str, str],
    *,
    theirs: str = "",
    ours: str = "",
    parts: Sequence[str] = AFFINE,
) -> list[Rule]:
    """Take the tensors of modules as they are under other names.

    Args:
        modules: their name of a module to ours.
        theirs, ours: prefixes of all these names.
        parts: the tensors of a module: AFFINE or LINEAR.
    """
    return [
        same(f"{theirs}{their_name}.{part}", f"{ours}{our_name}.{part}")
        for their_name, our_name in modules.items()
        for part in parts
    ]


def transposed(theirs: str, ours: str) -> Rule:
    """Transpose a matrix."""

    def transpose(tensors: Sequence[Tensor]) -> list[Tensor]:
        return [tensor.T.contiguous() for tensor in tensors]

    return Rule((theirs,), (ours,), transpose, transpose)


def reshaped(theirs: str, ours: str, their_shape: Sequence[int], our_shape: Sequence[int]) -> Rule:
    """Keep the numbers in their order under another shape."""
    return Rule(
        (theirs,),
        (ours,),
        lambda x: [x[0].reshape(tuple(our_shape))],
        lambda x: [x[0].reshape(tuple(their_shape))],
    )


def concatenated(
    theirs: str, ours: Sequence[str], sizes: Sequence[int], *, transpose: bool = False
) -> Rule:
    """Split one tensor of theirs into several of ours, and concatenate them again.

    Args:
        theirs: its name.
        ours: names, from top to bottom.
        sizes: rows of each of ours.
        transpose: theirs is transposed, with ours side by side in it.
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
        rules: for all tensors that are learned.
        copies: tensors of theirs that only repeat others.
        ignored: regular expressions of whole names of theirs that hold nothing learned, such as
            position numbers and causal masks stored as buffers.
    """

    rules: tuple[Rule, ...]
    copies: tuple[RepeatedTensor, ...] = ()
    ignored: tuple[str, ...] = ()

    def their_names(self) -> list[str]:
        """Return the names of all tensors of theirs that the rules take."""
        return [name for rule in self.rules for name in rule.theirs]

    def to_ours(self, theirs: Mapping[str, Tensor], *, where: str) -> Tensors:
        """Return their tensors as ours, every one accounted for.

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
            twin = theirs.pop(copy.name, None)
            if twin is not None and copy.of in theirs and not torch.equal(twin, theirs[copy.of]):
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
        """Return our tensors as theirs, every one accounted for.

        Raises:
            ModelError: listing tensors that no rule names, or that a rule names and are not there.
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
    """Tensors that do not fit, collected so that one message lists them all."""

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
    """Return a prefix if any name has it, or if there are no names; else nothing."""
    return prefix if not names or any(name.startswith(prefix) for name in names) else ""


def first_names(names: Sequence[str]) -> str:
    """Return the first few names, and how many more there are."""
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
