"""All pages of the books, put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gateway.dashboard.books.acts_pages import ActsPages
from gateway.dashboard.books.adjustment_pages import AdjustmentPages
from gateway.dashboard.books.close_pages import ClosePages
from gateway.dashboard.books.frame import Books
from gateway.dashboard.books.imports_pages import ImportPages
from gateway.dashboard.books.reconciliation_pages import ReconciliationPages
from gateway.dashboard.books.unattributed_pages import UnattributedPages


def book_routes(books: Books) -> Iterator[tuple[str, str, Callable[..., object]]]:
    """Method, path below `/ui`, and what answers, of every page of the books."""
    yield from ClosePages(books=books).routes()
    yield from ImportPages(books=books).routes()
    yield from ReconciliationPages(books=books).routes()
    yield from AdjustmentPages(books=books).routes()
    yield from UnattributedPages(books=books).routes()
    yield from ActsPages(books=books).routes()
