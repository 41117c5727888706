"""Jinja for chat templates of others: a sandbox whose work and output are bounded."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Iterable
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from heedful.errors import DataError, first_line

MOST_CHARACTERS = 1_000_000
"""Most characters of a template, and of a text that it makes."""
_MOST_STEPS = 200_000
"""Most repetitions of loops, and most calls, of one text."""

# Those of published templates. Filters that pad a text to a width are not among them.
_FILTERS = (
    *("trim", "length", "count", "first", "last", "join", "upper", "lower", "default", "d"),
    *("capitalize", "title", "string", "int", "list", "replace", "items", "map", "select"),
    *("reject", "selectattr", "rejectattr", "unique", "sort", "dictsort", "reverse", "safe"),
)
_METHODS = {
    *("strip", "lstrip", "rstrip", "split", "rsplit", "startswith", "endswith", "replace"),
    *("join", "upper", "lower", "title", "capitalize", "find", "removeprefix", "removesuffix"),
    *("splitlines", "count", "isdigit", "partition", "rpartition", "index"),
}
"""Methods of texts that templates may call; those that pad could make gigabytes of one call."""


class _Generation(Extension):
    """The tag `generation`, which some templates have around an answer; it changes nothing here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """An environment that counts steps, and refuses operations whose results may be huge."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])
    concat = staticmethod(lambda parts: _bounded("".join(_within(parts))))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
            # A template is made once and kept by its owner.
            cache_size=0,
        )
        self.steps = 0
        known = {name: self.filters[name] for name in _FILTERS}
        known |= {"tojson": _to_json, "repeated": self.repeated, "joined": self.concat}
        for name in ("replace", "join"):
            known[name] = self._guarded(known[name])
        self.filters = known
        self.globals = {
            "range": self._range,
            "namespace": self.globals["namespace"],
            "dict": dict,
            "raise_exception": _refuse,
            "strftime_now": lambda form: datetime.datetime.now().strftime(form[:50]),
        }

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr not in _METHODS:
            return False
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator != "+" and not all(isinstance(x, int | float) for x in (left, right)):
            raise SecurityError(f"{operator} is for numbers here")
        if operator == "**" and abs(right) > 64:
            raise SecurityError("the power is above 64")
        return _bounded(super().call_binop(context, operator, left, right))

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self.count(1)
        # A method brings the text that it belongs to.
        _check_product([getattr(obj, "__self__", None), *args])
        return super().call(context, obj, *args, **kwargs)

    def repeated(self, items: Iterable[Any]) -> Any:
        """Return what a loop goes over, with its length added to the steps."""
        if isinstance(items, Undefined):
            return items
        found = list(items)
        self.count(len(found))
        return found

    def count(self, steps: int) -> None:
        self.steps += steps
        if self.steps > _MOST_STEPS:
            raise SecurityError(f"more than {_MOST_STEPS:,} repetitions and calls")

    def _range(self, *bounds: int) -> range:
        result = range(*bounds)
        self.count(len(result))
        return result

    def _guarded(self, function: Any) -> Any:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            _check_product(args)
            return function(*args, **kwargs)

        # Jinja's marks, by which it passes its own context first.
        guarded.__dict__.update(function.__dict__)
        return guarded


class BoundedTemplate:
    """A template whose text is bounded in size and in the work that it takes.

    Args:
        source: Jinja template.
        where: name of its file, for messages.

    Raises:
        DataError: when it is too long or no template, with the line.
    """

    def __init__(self, source: str, where: str) -> None:
        self._where = where
        if len(source) > MOST_CHARACTERS:
            raise self._error(f"it has more than {MOST_CHARACTERS:,} characters", 1)
        self._sandbox = _Sandbox()
        try:
            tree = self._sandbox.parse(source)
            for loop in list(tree.find_all(nodes.For)):
                loop.iter = _filtered("repeated", loop.iter)
            _bound_joins(tree)
            code = self._sandbox.compile(tree, filename=where)
            self._template = self._sandbox.template_class.from_code(
                self._sandbox, code, dict(self._sandbox.globals)
            )
        except (TemplateError, RecursionError) as error:
            raise self._error(first_line(error), getattr(error, "lineno", None)) from None

    def render(self, **values: Any) -> str:
        """Return the text for values.

        Raises:
            DataError: when the template fails, refuses the values or does too much.
        """
        self._sandbox.steps = 0
        parts, size = [], 0
        try:
            for part in self._template.generate(**values):
                size += len(part)
                _check_size(size)
                parts.append(part)
        # Templates of others may fail in any way: a wrong type, a missing key, too deep a call.
        except Exception as error:
            raise self._error(first_line(error), _line(error, self._template)) from None
        return "".join(parts)

    def _error(self, problem: str, line: int | None) -> DataError:
        return DataError(
            f"The chat template cannot be used: {problem}",
            where=self._where + (f":{line}" if line else ""),
            remedy="Correct the template, or the conversation that it refuses",
        )


def _line(error: BaseException, template: Any) -> int | None:
    """Return the template's line at which an error was raised; None if it is not known."""
    # Jinja rewrites the traceback: frames of the template have its own file name and lines.
    trace, found = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == template.filename:
            found = trace.tb_lineno
        trace = trace.tb_next
    return found


def _bound_joins(tree: nodes.Node) -> None:
    """Replace each `a ~ b` of a template by a filter that bounds its length."""
    for node in [tree, *tree.find_all(nodes.Node)]:
        for name, value in list(node.iter_fields()):
            if isinstance(value, nodes.Concat):
                setattr(node, name, _joined(value))
            elif isinstance(value, list):
                value[:] = [_joined(v) if isinstance(v, nodes.Concat) else v for v in value]


def _joined(node: nodes.Concat) -> nodes.Filter:
    return _filtered("joined", nodes.List(node.nodes, lineno=node.lineno))


def _filtered(name: str, node: Any) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _within(parts: Iterable[Any]) -> list[str]:
    texts = list(map(str, parts))
    _check_size(sum(map(len, texts)))
    return texts


def _check_size(size: int) -> None:
    if size > MOST_CHARACTERS:
        raise SecurityError(f"a text of more than {MOST_CHARACTERS:,} characters")


def _bounded(value: Any) -> Any:
    _check_size(len(value) if isinstance(value, str | list | tuple) else 0)
    return value


def _check_product(values: Iterable[Any]) -> None:
    """Refuse arguments whose combination may be huge, as in `text.replace("", long)`."""
    sizes = [len(each) + 1 for each in values if isinstance(each, str | list | tuple)]
    if math.prod(sizes) > 100 * MOST_CHARACTERS:
        raise SecurityError("too large a text for this call")


def _to_json(value: Any, indent: int | None = None, ensure_ascii: bool = False, **_: Any) -> str:
    # Jinja's own filter writes HTML escapes, which the models were not trained on.
    indent = None if indent is None else min(indent, 8)
    return str(_bounded(json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)))


def _refuse(message: str) -> None:
    raise TemplateError(str(message))
