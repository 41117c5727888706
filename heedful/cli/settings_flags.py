"""Every field of a settings class as a flag `--section.key`, with its default and description.

The flags are made from the class, so that help, TOML files and the library cannot drift apart.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Collection, Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pydantic
from cyclopts import Group, Parameter
from pydantic.fields import FieldInfo

from heedful.config import Config, merge

_PATH = "setting"


def flags_of(settings: type[Config], title: str, *, skip: Collection[str] = ()) -> Any:
    """A class with a flag for every setting, all unset: an argument type for a verb.

    Args:
        settings: the tree of settings.
        title: heading of the settings at its top.
        skip: dotted names that get no flag.
    """
    fields = [
        _flag(path, field, group)
        for path, field, group in _leaves(settings, (), Group(title, sort_key=10))
        if ".".join(path) not in skip
    ]
    made = dataclasses.make_dataclass(
        f"{settings.__name__}Flags",
        fields,
        kw_only=True,
        frozen=True,
        namespace={"__module__": __name__},  # make_dataclass's own says: not a class to look into
    )
    return Parameter(name="*")(made)


def overrides(flags: Any) -> dict[str, Any]:
    """The settings that were given, as nested plain data.

    Args:
        flags: a value of a class that `flags_of` made, or None.
    """
    result: dict[str, Any] = {}
    for field in dataclasses.fields(flags) if flags is not None else ():
        value = getattr(flags, field.name)
        if value is None:
            continue
        nested: Any = list(value) if isinstance(value, tuple) else value
        for name in reversed(field.metadata[_PATH]):
            nested = {name: nested}
        result = merge(result, nested)
    return result


def _leaves(
    settings: type[pydantic.BaseModel], path: tuple[str, ...], group: Group
) -> Iterator[tuple[tuple[str, ...], FieldInfo, Group]]:
    sections: list[tuple[str, type[pydantic.BaseModel]]] = []
    for name, field in settings.model_fields.items():
        kind: Any = field.annotation
        if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
            sections.append((name, kind))
        else:
            yield (*path, name), field, group
    for position, (name, section) in enumerate(sections):
        summary = (section.__doc__ or "").strip().splitlines()[0]
        below = Group(name.capitalize(), help=summary, sort_key=20 + position)
        yield from _leaves(section, (*path, name), below)


def _flag(path: tuple[str, ...], field: FieldInfo, group: Group) -> tuple[str, Any, Any]:
    kind = _plain(field.annotation)
    several = get_origin(kind) is tuple
    parameter = Parameter(
        name="--" + ".".join(path).replace("_", "-"),
        group=group,
        help=_help(field),
        show_default=False,
        negative=(),
        consume_multiple=several,
    )
    unset = dataclasses.field(default=None, metadata={_PATH: path})
    return "__".join(path), Annotated[kind | None, parameter], unset


def _help(field: FieldInfo) -> str:
    default = "" if field.default is None else f"[default: {_show(field.default)}]"
    return f"{field.description or ''} {default}".strip()


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return " ".join(_show(item) for item in value)
    return str(value)


def _plain(annotation: Any) -> Any:
    """The type a word of the command line is turned into; bounds are checked with all settings."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _plain(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        kinds = [_plain(part) for part in get_args(annotation) if part is not type(None)]
        return Union[tuple(kinds)]  # noqa: UP007  # the members are values here, not syntax
    if origin is tuple:
        return tuple[_plain(get_args(annotation)[0]), ...]  # type: ignore[misc]
    assert origin is Literal or annotation in (bool, int, float, str), annotation
    return annotation
