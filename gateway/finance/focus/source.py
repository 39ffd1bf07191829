"""All that an export needs of finance: reconciliation, commitments, closed months.

Machines that are shared among teams come as `charges` too (`row_map.self_host`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from gateway.finance.focus.charges import Charge
from gateway.finance.focus.committed import Coverage
from gateway.finance.focus.invoices import (
    ContractLine,
    InvoiceAllocation,
    InvoiceLine,
    PeriodClose,
)


class FinanceSource(Protocol):
    """What finance knows beyond the ledger, of a range of instants."""

    def charges(self, from_us: int, to_us: int) -> Iterable[Charge]:
        """Charges that are billed in the range and are no usage of it."""
        ...

    def allocations(self, from_us: int, to_us: int) -> Sequence[InvoiceAllocation]:
        """What invoices bill for usage of the range."""
        ...

    def invoice_lines(self, from_us: int, to_us: int) -> Sequence[InvoiceLine]:
        """Lines of the range's invoices."""
        ...

    def contracts(self, from_us: int, to_us: int) -> Sequence[ContractLine]:
        """Commitments in force within the range."""
        ...

    def closes(self, from_us: int, to_us: int) -> Sequence[PeriodClose]:
        """Months of the range that are closed."""
        ...

    def replaced(self, from_us: int, to_us: int) -> frozenset[tuple[str, int]]:
        """Deployments and hours whose machine time comes as shares among `charges` instead."""
        ...

    def coverage(self, from_us: int, to_us: int) -> Coverage:
        """What commitments pay of the usage of the range, from the beginning of its first day."""
        ...


class NothingMore:
    """A finance source that knows of nothing."""

    def charges(self, from_us: int, to_us: int) -> Iterable[Charge]:
        """None."""
        return ()

    def allocations(self, from_us: int, to_us: int) -> Sequence[InvoiceAllocation]:
        """None."""
        return ()

    def invoice_lines(self, from_us: int, to_us: int) -> Sequence[InvoiceLine]:
        """None."""
        return ()

    def contracts(self, from_us: int, to_us: int) -> Sequence[ContractLine]:
        """None."""
        return ()

    def closes(self, from_us: int, to_us: int) -> Sequence[PeriodClose]:
        """None."""
        return ()

    def replaced(self, from_us: int, to_us: int) -> frozenset[tuple[str, int]]:
        """None."""
        del from_us, to_us
        return frozenset()

    def coverage(self, from_us: int, to_us: int) -> Coverage:
        """Nothing."""
        del from_us, to_us
        return Coverage()
