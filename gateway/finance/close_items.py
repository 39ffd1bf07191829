"""Items of a month's checklist: what is accepted of them, and what still stops the close."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gateway.finance.close_messages import CloseItem
from gateway.finance.errors import Refused

OK, ITEM_OPEN, ACCEPTED = "ok", "open", "accepted"


def accept(found: Sequence[CloseItem], accepted: Mapping[str, str]) -> tuple[CloseItem, ...]:
    """The checklist with what was accepted.

    Raises:
        Refused: Something is accepted that is no item, or that has to be mended.
    """
    names = {item.name: item for item in found}
    for name in accepted:
        if name not in names:
            raise Refused(f"{name!r} is none of the checklist: {', '.join(names)}")
        if not names[name].is_acceptable:
            raise Refused(f"{name} cannot be accepted: {names[name].sentence}")
    return tuple(
        msgspec.structs.replace(
            item, state=ACCEPTED, sentence=f"{item.sentence}; accepted: {accepted[item.name]}"
        )
        if item.state == ITEM_OPEN and item.name in accepted
        else item
        for item in found
    )


def check_nothing_open(month: str, items: Sequence[CloseItem]) -> None:
    """Refuse a close that lacks something.

    Raises:
        Refused: An item of the checklist is open; all are named.
    """
    lacking = [item for item in items if item.state == ITEM_OPEN]
    if lacking:
        told = "; ".join(
            f"{item.name}: {item.sentence}" + (" (may be accepted)" if item.is_acceptable else "")
            for item in lacking
        )
        raise Refused(f"{month} cannot be closed: {told}")
