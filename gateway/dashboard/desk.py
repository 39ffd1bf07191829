"""What pages have done for people: the same as `/admin/v1` does, with the same checks.

Implemented by `gateway.http.page_desk`; nothing here imports `gateway.http`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from gateway.access.restriction import Restriction
from gateway.access.roles import Viewer
from gateway.auth.keys import RandomBytes
from gateway.budgets.messages import BudgetReport
from gateway.forms import FormSent
from gateway.settings.limits import LimitSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyShown:
    """A key as it is told; the key itself is nowhere.

    Attributes:
        key_id: Its public id.
        team: Its team.
        project: Empty for none.
        name: What it is for.
        models: What it may use, None for all of its team's.
        limits: Its own rate limits, None for none.
        state: `active`, `expired` or `revoked`.
        source: `file` or `database`: where it can be changed.
        created_at: None for keys of the configuration file.
        expires_at: From then on it is void; None for never.
    """

    key_id: str
    team: str
    project: str
    name: str
    models: Sequence[str] | None
    limits: LimitSettings | None
    state: str
    source: str
    created_at: datetime | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKeyShown:
    """A key that was just made; its text is shown only now.

    Attributes:
        key: What clients send.
        name: What it is for.
    """

    key: str = field(repr=False)
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PageForm:
    """A form of a page, to be acted on once.

    Attributes:
        sent: What the ledger is told of it.
        random_bytes: A cryptographic source that gives the same each time the form is sent.
    """

    sent: FormSent
    random_bytes: RandomBytes = field(repr=False)


class Desk(Protocol):
    """Everything; each raises a `GatewayError` whose message is for whoever asks."""

    async def budgets(self, within: Restriction) -> Sequence[BudgetReport]:
        """Every budget in force that may be seen."""
        ...

    async def set_budget(
        self,
        name: str,
        order: Mapping[str, object],
        within: Restriction,
        viewer: Viewer,
        form: PageForm,
        *,
        is_new: bool,
    ) -> None:
        """Set a budget as `PUT /admin/v1/budgets` does; a new one only where there is none."""
        ...

    async def remove_budget(
        self, name: str, within: Restriction, viewer: Viewer, form: PageForm
    ) -> None:
        """Take a budget away."""
        ...

    async def keys(self, within: Restriction) -> Sequence[KeyShown]:
        """Every key that may be seen, those of the configuration file included."""
        ...

    async def make_key(
        self, order: Mapping[str, object], within: Restriction, viewer: Viewer, form: PageForm
    ) -> NewKeyShown:
        """Make a key as `POST /admin/v1/keys` does."""
        ...

    async def rotate_key(
        self,
        key_id: str,
        order: Mapping[str, object],
        within: Restriction,
        viewer: Viewer,
        form: PageForm,
    ) -> NewKeyShown:
        """Make a key's successor."""
        ...

    async def revoke_key(self, key_id: str, within: Restriction, viewer: Viewer) -> None:
        """Revoke a key at once, on every worker; one that is void already stays as it is."""
        ...
