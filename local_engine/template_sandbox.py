"""A Jinja environment in which a model's chat template can neither escape nor exhaust anything.

Templates come with downloaded models, so they are hostile until shown otherwise. Three measures:
names are allowed, never denied (globals, filters, methods of built-in types); everything that makes
or walks data is charged to a `Meter` with a budget and a deadline, before it happens where the size
is known; and nothing runs at compile time. Jinja's own sandbox stops the first kind of attack only.
"""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Final

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS, do_indent
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from local_engine.errors import TemplateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

    from jinja2.runtime import Context, Undefined

MAX_RANGE_ITEMS: Final = 10_000
MAX_INTEGER: Final = 1 << 63
MAX_DATE_FORMAT_CHARS: Final = 64
MAX_INDENT: Final = 16
MAX_ERROR_CHARS: Final = 500
MAX_DEPTH: Final = 64

_FILTERS: Final = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "int", "items",
    "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "reverse",
    "safe", "select", "selectattr", "sort", "title", "trim", "unique", "upper",
)  # fmt: skip
_STRING_METHODS: Final = (
    "capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isdigit", "islower",
    "isnumeric", "isspace", "istitle", "isupper", "join", "lower", "lstrip", "partition",
    "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "rstrip",
    "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper",
)  # fmt: skip
_METHODS: Final[dict[type, frozenset[str]]] = {
    str: frozenset(_STRING_METHODS),
    dict: frozenset({"get", "items", "keys", "values"}),
    list: frozenset({"count", "index"}),
    tuple: frozenset({"count", "index"}),
    int: frozenset(),
    float: frozenset(),
}
# Jinja's compiler passes these to every call for functions that want the context.
_SCOPE_ARGUMENTS: Final = frozenset({"_loop_vars", "_block_vars"})
_FORBIDDEN_NODES: Final = (
    nodes.Block, nodes.Extends, nodes.FromImport, nodes.Import, nodes.Include,
)  # fmt: skip


class Meter:
    """Counts what one rendering makes and how long it takes.

    A unit is a character or an item; the sum over a rendering bounds its memory and, with the
    deadline, its time.
    """

    def __init__(self, *, budget: int, deadline_s: float, clock: Callable[[], float]) -> None:
        self._left = budget
        self._clock = clock
        self._deadline = clock() + deadline_s

    def charge(self, units: int) -> None:
        """Account for `units` more.

        Raises:
            TemplateError: The budget or the time is used up.
        """
        self._left -= units
        if self._left < 0:
            raise TemplateError("the chat template makes too much text: choose another template")
        if self._clock() > self._deadline:
            raise TemplateError("the chat template takes too long: choose another template")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The environment; `meter` is set for the duration of each rendering."""

    intercepted_binops = frozenset({"+", "-", "*", "%", "**"})

    def __init__(self, *, now: Callable[[], datetime], meter: Meter) -> None:
        self.meter = meter
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constant folding would run the template's code before any limit
            autoescape=False,
            finalize=self.text_of,
            extensions=["jinja2.ext.loopcontrols"],
        )
        self.globals = {
            "namespace": Namespace,
            "raise_exception": _raise_exception,
            "range": _bounded_range,
            "strftime_now": functools.partial(_format_now, now),
        }
        self.filters = {name: self._metered(FILTERS[name]) for name in _FILTERS}
        self.filters |= {
            "indent": self._indent,
            "join": self._join,
            "replace": self._replace,
            "string": self.text_of,
            "tojson": self._to_json,
            "_concatenate": self._concatenate,
            "_iterate": self._iterate,
            "_slice": self._slice,
        }
        # Jinja joins captured blocks with this; a template can capture much more than it prints.
        self.concat = self._concatenate

    def parse_checked(self, source: str) -> nodes.Template:
        """Parse a template and put every loop, slice and concatenation under the meter.

        Raises:
            TemplateError: It uses what chat templates have no business with.
        """
        tree = self.parse(source)
        for node in tree.find_all(_FORBIDDEN_NODES):
            raise TemplateError(
                f"the chat template uses {type(node).__name__.lower()!r} on line {node.lineno}, "
                "which is not allowed: choose another template"
            )
        for loop in tree.find_all(nodes.For):
            if loop.recursive:
                raise TemplateError("the chat template loops recursively, which is not allowed")
        metered = _MeteringTransformer().visit(tree)
        assert isinstance(metered, nodes.Template)
        metered.set_environment(self)
        return metered

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        """Allow the listed methods of built-in types, and names without underscore of the rest."""
        for kind, methods in _METHODS.items():
            if isinstance(obj, kind):
                return attr in methods
        return super().is_safe_attribute(obj, attr, value)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look up an attribute or item by name; names of Python's own machinery are refused."""
        if attribute.startswith("__"):
            return self.unsafe_undefined(obj, attribute)
        return super().getattr(obj, attribute)

    def wrap_str_format(self, value: object) -> None:
        """Leave `str.format` to `is_safe_attribute`, which refuses it; Jinja would permit it."""

    def unsafe_undefined(self, obj: object, attribute: str) -> Undefined:
        """Refuse at once; Jinja would let an unsafe attribute pass as empty text."""
        raise SecurityError(f"access to {attribute!r} of a {type(obj).__name__} is not allowed")

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function or method after charging for what it will make."""
        owner = getattr(obj, "__self__", None)
        name = getattr(obj, "__name__", "")
        if isinstance(owner, str):
            named = {key: value for key, value in kwargs.items() if key not in _SCOPE_ARGUMENTS}
            if name == "replace":
                return self._replace(owner, *args, **named)
            if name == "join":
                return self._join(args[0], owner)
            # Splitting makes small objects, each several times its text.
            self.meter.charge(4 * len(owner))
        else:
            self.meter.charge(1)
        if not self.is_safe_callable(obj):
            raise SecurityError("this is not to be called from a chat template")
        return context.call(obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute an operation whose result could be large, or refuse it."""
        if operator == "*":
            self._check_product(left, right)
        elif operator == "**":
            raise SecurityError("powers are not allowed in chat templates")
        elif operator == "%" and isinstance(left, str):
            raise SecurityError("string formatting is not allowed in chat templates")
        elif operator == "+" and isinstance(left, (str, list, tuple)):
            self.meter.charge(len(left) + (len(right) if hasattr(right, "__len__") else 0))
        result = super().call_binop(context, operator, left, right)
        if isinstance(result, int) and abs(result) > MAX_INTEGER:
            raise TemplateError("the chat template computes too large a number")
        return result

    def text_of(self, value: object) -> str:
        """Turn a value into text; the size of nested values is charged before they are printed."""
        self.meter.charge(self._size(value))
        return str(value)

    def _size(self, value: object, depth: int = 0) -> int:
        """Characters that `value` prints as, roughly; shared parts count each time they appear."""
        if depth > MAX_DEPTH:
            raise TemplateError("the chat template nests values too deeply")
        if isinstance(value, str):
            return len(value) + 2
        self.meter.charge(1)
        if isinstance(value, dict):
            pairs: Iterable[object] = (part for pair in value.items() for part in pair)
            return sum(self._charged_size(part, depth + 1) for part in pairs)
        if isinstance(value, (list, tuple)):
            return sum(self._charged_size(part, depth + 1) for part in value)
        return 24

    def _charged_size(self, value: object, depth: int) -> int:
        # Charged on the way, so that a small tree with an exponential print-out stops early.
        size = self._size(value, depth)
        self.meter.charge(size if isinstance(value, str) else 1)
        return size

    def _check_product(self, left: object, right: object) -> None:
        for sequence, count in ((left, right), (right, left)):
            if isinstance(sequence, (str, list, tuple)) and isinstance(count, int):
                self.meter.charge(len(sequence) * max(count, 0))

    def _metered(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Charge a stock filter for the size of its input."""
        position = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def charged(*args: Any, **kwargs: Any) -> Any:
            value = args[position]
            self.meter.charge(4 * len(value) if hasattr(value, "__len__") else 1)
            return function(*args, **kwargs)

        return charged

    def _concatenate(self, parts: Iterable[object]) -> str:
        texts = [part if isinstance(part, str) else self.text_of(part) for part in parts]
        self.meter.charge(sum(map(len, texts)))
        return "".join(texts)

    def _iterate(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.meter.charge(1)
            yield item

    def _slice(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        self.meter.charge(len(value))
        return value[start:stop:step]

    def _join(self, items: Iterable[object], separator: str = "", attribute: Any = None) -> str:
        if attribute is not None:
            items = [self.getitem(item, attribute) for item in items]
        texts = [self.text_of(item) for item in items]
        self.meter.charge(len(separator) * len(texts))
        return str(separator).join(texts)

    def _replace(self, value: object, old: str, new: str, count: int = -1) -> str:
        text = self.text_of(value)
        found = text.count(old)
        self.meter.charge(len(text) + len(new) * (found if count < 0 else min(found, count)))
        return text.replace(old, new, count)

    def _indent(self, value: str, width: int = 4, first: bool = False, blank: bool = False) -> str:
        if not 0 <= width <= MAX_INDENT:
            raise TemplateError(f"the chat template indents by {width}, more than {MAX_INDENT}")
        self.meter.charge(len(value) + width * (value.count("\n") + 1))
        return do_indent(value, width, first, blank)

    def _to_json(
        self,
        value: object,
        indent: int | None = None,
        ensure_ascii: bool = False,
        sort_keys: bool = False,
        separators: tuple[str, str] | None = None,
    ) -> str:
        """Plain JSON, as the models were trained on; Jinja's own filter escapes for HTML."""
        if indent is not None and not 0 <= indent <= MAX_INDENT:
            raise TemplateError(f"the chat template indents by {indent}, more than {MAX_INDENT}")
        # Six characters for an escaped one, and indentation of every item.
        self.meter.charge(self._size(value) * (6 if ensure_ascii else 2))
        return json.dumps(
            value,
            indent=indent,
            ensure_ascii=ensure_ascii,
            sort_keys=sort_keys,
            separators=separators,
        )


class _MeteringTransformer(NodeTransformer):
    """Routes loops, slices and `~` through the sandbox's private filters."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 (Jinja's naming)
        self.generic_visit(node)
        assert isinstance(node.iter, nodes.Expr)
        node.iter = _filtered(node.iter, "_iterate", [])
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802 (Jinja's naming)
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "_concatenate", [])

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802 (Jinja's naming)
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        absent = nodes.Const(None, lineno=node.lineno)
        bounds = [node.arg.start or absent, node.arg.stop or absent, node.arg.step or absent]
        assert isinstance(node.node, nodes.Expr)
        return _filtered(node.node, "_slice", bounds)


def _filtered(value: nodes.Expr, name: str, arguments: list[nodes.Expr]) -> nodes.Filter:
    return nodes.Filter(value, name, arguments, [], None, None, lineno=value.lineno)


def _raise_exception(message: object) -> None:
    raise TemplateError(f"the chat template refused: {str(message)[:MAX_ERROR_CHARS]}")


def _bounded_range(*bounds: int) -> range:
    items = range(*bounds)
    if len(items) > MAX_RANGE_ITEMS:
        raise TemplateError(f"the chat template counts beyond {MAX_RANGE_ITEMS}")
    return items


def _format_now(now: Callable[[], datetime], pattern: str) -> str:
    # Short, because a field may name a width, which the C library honours.
    if len(pattern) > MAX_DATE_FORMAT_CHARS:
        raise TemplateError("the chat template's date format is too long")
    return now().strftime(pattern)
