"""Lists that are searched and sorted by their address, so that a link keeps a view."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from urllib.parse import urlencode

from gateway.errors import InvalidField

T = TypeVar("T")

QUERY_CHARACTERS_MAX = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Order(Generic[T]):
    """A column that a list can be sorted by.

    Attributes:
        label: Its heading.
        key: What is compared: a number, then a text.
        is_falling: Whether the largest comes first.
    """

    label: str
    key: Callable[[T], tuple[int, str]]
    is_falling: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The heading of such a column.

    Attributes:
        name: In the address.
        label: For people.
        href: The list, sorted by it.
        is_chosen: Whether the list is sorted by it.
        order: `ascending` or `descending`.
    """

    name: str
    label: str
    href: str
    is_chosen: bool
    order: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Generic[T]):
    """What an address asks of a list.

    Attributes:
        path: The page.
        q: What is looked for, empty for everything.
        sort: Name of an order, empty for the list's own.
        kept: What else is in the address.
        orders: By name.
    """

    path: str
    q: str
    sort: str
    kept: Mapping[str, str]
    orders: Mapping[str, Order[T]]

    def lines(self, found: Iterable[T], words: Callable[[T], Iterable[str]]) -> list[T]:
        """Those of a list that fit, in the order that is asked for."""
        sought = self.q.casefold()
        fitting = [one for one in found if any(sought in word.casefold() for word in words(one))]
        order = self.orders.get(self.sort)
        if order is None:
            return fitting
        return sorted(fitting, key=order.key, reverse=order.is_falling)

    def columns(self) -> dict[str, Column]:
        """The headings, by name."""
        return {
            name: Column(
                name=name,
                label=order.label,
                href=self.address(sort="" if name == self.sort else name),
                is_chosen=name == self.sort,
                order="descending" if order.is_falling else "ascending",
            )
            for name, order in self.orders.items()
        }

    def address(self, **changes: str) -> str:
        """The list's address with some of it changed."""
        said = {"q": self.q, "sort": self.sort, **self.kept, **changes}
        query = urlencode({name: value for name, value in said.items() if value})
        return f"{self.path}?{query}" if query else self.path


def read_listing(
    given: Mapping[str, str],
    path: str,
    orders: Mapping[str, Order[T]],
    *,
    keeping: Sequence[str] = (),
) -> Listing[T]:
    """Read what an address asks of a list.

    Args:
        given: Its parameters.
        path: The page.
        orders: By name.
        keeping: Names of other parameters that stay in its links.

    Raises:
        InvalidField: It sorts by what there is not, or looks for too long a text.
    """
    q, sort = given.get("q", "").strip(), given.get("sort", "")
    if len(q) > QUERY_CHARACTERS_MAX:
        raise InvalidField(f"q is longer than {QUERY_CHARACTERS_MAX} characters", param="q")
    if sort and sort not in orders:
        raise InvalidField(f"sort: {sort[:64]!r} is none of {', '.join(orders)}", param="sort")
    kept = {name: given.get(name, "") for name in keeping}
    return Listing(path=path, q=q, sort=sort, kept=kept, orders=orders)
