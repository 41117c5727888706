"""The parser of a verb's arguments, built by cyclopts, and the help that it prints.

A verb is a function: its parameters are the flags, and the `Args:` of its docstring their help.
`flag_group` makes a class of flags that verbs share. `flags_of` makes a flag `--section.key` of
every field of a settings class, with its default and description, so that help, TOML files and the
library always agree.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import keyword
import re
import types
from collections.abc import Callable, Collection, Iterator
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
)

import pydantic
from cyclopts import App, Group, Parameter
from cyclopts.argument import ArgumentCollection
from cyclopts.help import DefaultFormatter, HelpEntry, HelpPanel
from cyclopts.help.specs import AsteriskColumn, ColumnSpec, NameRenderer
from pydantic.fields import FieldInfo

import heedful
from heedful.config import Config, merge

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

_MODULES = {
    **dict.fromkeys(("answer", "fill", "tag"), "encoder_verbs"),
    **dict.fromkeys(("classify", "embed"), "labels_and_vectors"),
    **dict.fromkeys(("import", "export", "merge"), "convert"),
    **dict.fromkeys(("ablate", "prune"), "heads"),
    **dict.fromkeys(("data check", "data clean", "data split", "data shard"), "data"),
    **dict.fromkeys(("data world", "data midi"), "act"),
    **dict.fromkeys(("data codes", "data pictures"), "records.picture_codes"),
    "plan": "training_plan",
    "presets": "info",
    "sweep": "compare",
}
"""Modules of verbs whose module has another name than the verb."""

_PATH = "setting"
"""Key of a flag's metadata for the name of its setting."""

_NAME_SHARE = 0.35
"""Share of the terminal's width for the names of flags."""

_BORDERS, _GAP = 4, 2
"""Widths, in characters, of both borders of a panel and of the gap between columns."""

_ARGUMENT = re.compile(r"^ {4}(\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
"""An entry below `Args:` in a docstring."""

_Flags = TypeVar("_Flags")


def build_app(verb: str) -> App:
    """Build the parser of one verb; this loads the verb's module."""
    return _app(App(name=verb.split()[-1]), verb)


def print_help(verb: str) -> None:
    """Print a verb's docstring and all of its flags."""
    formatter = _HelpFormatter(column_specs=_columns)
    formatter.text, _ = _parted(function_behind(verb))
    # Without a text of its own, the app loads a parser of docstrings: 3 % of the time of --help.
    explained = _Explained(name=verb.split()[-1], help_formatter=formatter, help="")
    _app(explained, verb).help_print(verb.split())


def function_behind(verb: str) -> Callable[..., Any]:
    """Load the function of a verb."""
    name = verb.replace("-", "_").replace(" ", "_")
    module = importlib.import_module(f"heedful.cli.{_MODULES.get(verb, name)}")
    # `import` is a keyword of Python, so its function is `import_`
    function: Callable[..., Any] = getattr(module, f"{name}_" if keyword.iskeyword(name) else name)
    return function


def _app(command: App, verb: str) -> App:
    command.default(function_behind(verb))
    app = App(
        name="heedful",
        version=heedful.__version__,
        help_format="plaintext",  # formatted by _HelpFormatter
        suppress_keyboard_interrupt=False,
        # Switches have a `--no-…` form only on request, and their default "off" is not printed.
        default_parameter=Parameter(negative=(), show_default=_default_text),
    )
    group = app
    for word in verb.split()[:-1]:
        inner = App(name=word)
        group.command(inner)
        group = inner
    group.command(command)
    return app


class _Explained(App):
    """An app that collects its flags once, for both the usage line and the panels."""

    _collected: ArgumentCollection | None = None

    def assemble_argument_collection(self, **options: Any) -> ArgumentCollection:
        if self._collected is None:
            # cyclopts also reads the source of each class, which took a sixth of the time of --help
            options["parse_docstring"] = False
            self._collected = super().assemble_argument_collection(**options)
            _explain(self._collected, self.default_command)
        return self._collected


def _explain(arguments: ArgumentCollection, verb: Any) -> None:
    """Set the help of flags from the docstrings of the verb and its flag groups."""
    texts = of_verb = _explanations(verb)
    for argument in arguments:
        if not argument.keys:  # a parameter of the verb, or a group, before its flags
            texts, text = _explanations(argument.hint), of_verb.get(argument.field_info.name)
        else:
            text = texts.get(argument.field_info.name)
        if text is not None:
            argument.parameter = Parameter.combine(argument.parameter, Parameter(help=text))


def _explanations(documented: Any) -> dict[str, str]:
    """Return the entries below `Args:` of a docstring, by argument."""
    _, entries = _parted(documented)
    return {name: " ".join(text.split()) for name, text in _ARGUMENT.findall(entries)}


def _parted(documented: Any) -> tuple[str, str]:
    """Return a docstring before its `Args:`, and the entries below."""
    text, _, entries = (inspect.getdoc(documented) or "").partition("\nArgs:\n")
    return text, entries


def _default_text(value: Any) -> str:
    """Return the default of a flag for its help; empty for None, "none" and off."""
    return "" if value is None or value is False else _spell(value)


class _HelpFormatter(DefaultFormatter):
    """A help formatter that draws panels like cyclopts, below a text formatted by `prose`."""

    text = ""
    """Docstring of the verb before its arguments."""

    def render_description(
        self, console: Console, options: ConsoleOptions, description: Any
    ) -> None:
        del options, description
        from heedful.cli.overview import prose

        console.print(prose(self.text))

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        from heedful.cli.overview import inline

        super().__call__(
            console, options, panel.copy(description=inline(_plain(panel.description)))
        )


def _plain(text: Any) -> str:
    """Return the string that cyclopts has wrapped; empty for None."""
    return str(getattr(text, "primary_renderable", text or ""))


def _columns(
    console: Console, options: ConsoleOptions, entries: list[HelpEntry]
) -> tuple[ColumnSpec, ...]:
    """Return the columns of a panel, wide enough that no name of a flag is wrapped."""
    words = [word for entry in entries for label in entry.all_options for word in label.split()]
    longest = max(map(len, words), default=0)
    widest = round(max(_NAME_SHARE * console.width, min(longest, console.width / 2)))
    renderer = NameRenderer(max_width=widest)
    lines = (line for entry in entries for line in str(renderer(entry)).splitlines())
    width = min(widest, max(map(len, lines), default=0))
    asterisk = (AsteriskColumn,) if any(entry.required for entry in entries) else ()
    # Without a width, rich measures every cell, which took a tenth of the time.
    left = console.width - _BORDERS - len(asterisk) * (1 + _GAP) - width - _GAP
    names = ColumnSpec(renderer=renderer, style="cyan", width=width)
    return *asterisk, names, ColumnSpec(renderer=_description, overflow="fold", width=left)


def _description(entry: HelpEntry) -> Text:
    """Return the help of a flag with its choices, its default and a note if it is required."""
    from heedful.cli.overview import inline

    text = inline(_plain(entry.description))
    notes = [("choices", ", ".join(entry.choices or ())), ("default", entry.default or "")]
    for name, value in notes:
        if value:
            text.append(f" [{name}: {value}]", style=f"cyclopts.{name}")
    if entry.required:
        text.append(" [required]", style="cyclopts.required")
    return text


@dataclass_transform(kw_only_default=True, frozen_default=True)
def flag_group(title: str, position: int) -> Callable[[type[_Flags]], type[_Flags]]:
    """Return a decorator that makes a class a group of flags that verbs can share.

    Args:
        title: heading of the flags in the help of a verb.
        position: number by which the headings of a verb are sorted.
    """

    def decorate(flags: type[_Flags]) -> type[_Flags]:
        group = Parameter(name="*", group=Group(title, sort_key=position))
        return group(dataclasses.dataclass(frozen=True, kw_only=True)(flags))

    return decorate


def flags_of(
    settings: type[Config],
    title: str,
    *,
    skip: Collection[str] = (),
    first: Collection[str] = (),
    leading: Group | None = None,
) -> Any:
    """Make an argument type for a verb, with an unset flag for every setting.

    Args:
        settings: settings class, whose fields may be settings classes.
        title: heading of the flags for the fields of the class itself.
        skip: dotted names that get no flag.
        first: dotted names of the flags that stand together before all others, in this order.
        leading: heading of those, with the help of a verb's own most used flags.
    """
    groups: dict[str, tuple[tuple[str, ...], FieldInfo, Group | None]] = {
        ".".join(path): (path, field, group)
        for path, field, group in _leaves(settings, (), Group(title, sort_key=10))
        if ".".join(path) not in skip
    }
    for name in first:
        path, field, _ = groups[name]
        groups[name] = path, field, leading
    ordered = {**{name: groups[name] for name in first}, **groups}
    fields = [_flag(path, field, group) for path, field, group in ordered.values()]
    flags = dataclasses.make_dataclass(
        f"{settings.__name__}Flags",
        fields,
        kw_only=True,
        frozen=True,
        repr=False,  # generating these methods for 150 flags takes 3 % of the time of --help
        eq=False,
        # cyclopts does not expand classes of the module "types", the default of make_dataclass. The
        # module name has no file, which cyclopts would parse for descriptions: 8 % of the time of
        # --help.
        namespace={"__module__": f"{__name__}.{settings.__name__}", "__doc__": f"{title} flags."},
    )
    return Parameter(name="*")(flags)


def overrides(flags: Any) -> dict[str, Any]:
    """Return the settings that flags set, as nested plain data.

    Args:
        flags: an instance of a class that `flags_of` made, or None.
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
        section = _section(field.annotation)
        if section is not None:
            sections.append((name, section))
        else:
            yield (*path, name), field, group
    for position, (name, below) in enumerate(sections):
        summary = (below.__doc__ or "").strip().splitlines()[0]
        heading = Group(name.capitalize(), help=summary, sort_key=20 + position)
        yield from _leaves(below, (*path, name), heading)


def _section(annotation: Any) -> type[pydantic.BaseModel] | None:
    """Return the settings class of a field that is a section, optional or not; None for others."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel):
            return kind
    return None


def _flag(path: tuple[str, ...], field: FieldInfo, group: Group | None) -> tuple[str, Any, Any]:
    kind = _word_type(field.annotation)
    parameter = Parameter(
        name="--" + ".".join(path).replace("_", "-"),
        group=group,
        help=_help(field),
        consume_multiple=get_origin(kind) is tuple,
    )
    unset = dataclasses.field(default=None, metadata={_PATH: path})
    return "__".join(path), Annotated[kind | None, parameter], unset


def _help(field: FieldInfo) -> str:
    text = field.description or ""
    # Descriptions are phrases in the tables of the documentation, and sentences here.
    sentence = f"{text[:1].upper()}{text[1:]}."
    unset = field.default is None or field.default == ()
    return sentence if unset else f"{sentence} [default: {_spell(field.default)}]"


def _spell(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return " ".join(_spell(item) for item in value)
    return str(value)


def _word_type(annotation: Any) -> Any:
    """Return the type that cyclopts parses a word into; pydantic validates all settings later."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _word_type(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        kinds = [_word_type(part) for part in get_args(annotation) if part is not type(None)]
        return Union[tuple(kinds)]  # noqa: UP007  # the members are values here, not syntax
    if origin is tuple:
        return tuple[_word_type(get_args(annotation)[0]), ...]  # type: ignore[misc]
    assert origin is Literal or annotation in (bool, int, float, str), annotation
    return annotation
