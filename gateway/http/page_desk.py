"""What pages have done for people, by the handlers of `/admin/v1`: one set of checks for both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from gateway import errors
from gateway.access.restriction import Restriction
from gateway.access.roles import Viewer
from gateway.budgets.messages import BudgetReport
from gateway.dashboard.desk import KeyShown, NewKeyShown, PageForm
from gateway.http.admin import AdminApi
from gateway.http.admin_budgets import BudgetApi
from gateway.http.admin_models import KeyView, NewKeyBody, RotationBody
from gateway.settings.budget_orders import BudgetOrder
from gateway.settings.scalars import Name

M = TypeVar("M", bound=BaseModel)

_NAME: TypeAdapter[str] = TypeAdapter(Name)
_PROBLEMS_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PageDesk:
    """See `gateway.dashboard.desk.Desk`.

    Attributes:
        admin: Keys.
        budget_api: Budgets.
    """

    admin: AdminApi
    budget_api: BudgetApi

    async def budgets(self, within: Restriction) -> Sequence[BudgetReport]:
        """Every budget in force that may be seen."""
        return await self.budget_api.reports(within)

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
        """Set a budget; every worker goes by it when this returns."""
        body = _checked(BudgetOrder, order)
        await self.budget_api.put(_name(name), body, within, viewer, form=form.sent, is_new=is_new)

    async def remove_budget(
        self, name: str, within: Restriction, viewer: Viewer, form: PageForm
    ) -> None:
        """Take a budget away; no worker goes by it when this returns."""
        await self.budget_api.delete(_name(name), within, viewer, form=form.sent)

    async def keys(self, within: Restriction) -> Sequence[KeyShown]:
        """Every key that may be seen."""
        return [_key(one) for one in (await self.admin.list_keys(within)).keys]

    async def make_key(
        self, order: Mapping[str, object], within: Restriction, viewer: Viewer, form: PageForm
    ) -> NewKeyShown:
        """Make a key; every worker takes it when this returns."""
        body = _checked(NewKeyBody, order)
        made = await self.admin.make_key(
            body, within, viewer, random_bytes=form.random_bytes, form=form.sent
        )
        return NewKeyShown(key=made.key, name=made.name)

    async def rotate_key(
        self,
        key_id: str,
        order: Mapping[str, object],
        within: Restriction,
        viewer: Viewer,
        form: PageForm,
    ) -> NewKeyShown:
        """Make a key's successor."""
        body = _checked(RotationBody, order)
        made = await self.admin.replace_key(
            key_id[:128], body, within, viewer, random_bytes=form.random_bytes, form=form.sent
        )
        return NewKeyShown(key=made.key, name=made.name)

    async def revoke_key(self, key_id: str, within: Restriction, viewer: Viewer) -> None:
        """Revoke a key; no worker takes it when this returns."""
        await self.admin.revoke_key(key_id[:128], within, viewer)


def _key(view: KeyView) -> KeyShown:
    return KeyShown(
        key_id=view.key_id,
        team=view.team,
        project=view.project or "",
        name=view.name,
        models=view.models,
        limits=view.limits,
        state=view.state,
        source=view.source,
        created_at=view.created_at,
        expires_at=view.expires_at,
    )


def _name(text: str) -> str:
    try:
        return _NAME.validate_python(text)
    except ValidationError as error:
        raise errors.InvalidField(_told(error, "name"), param="name") from error


def _checked(model: type[M], order: Mapping[str, object]) -> M:
    """Fields of a form as the API's body.

    Raises:
        InvalidField: Says which field, and what is wrong with it; never the value.
    """
    try:
        return model.model_validate(order)
    except ValidationError as error:
        raise errors.InvalidField(_told(error, "")) from error


def _told(error: ValidationError, place: str) -> str:
    told: list[str] = []
    for one in error.errors(include_url=False, include_input=False)[:_PROBLEMS_MAX]:
        where = ".".join(map(str, one["loc"])) or place
        message = one["msg"].removeprefix("Value error, ")
        told.append(f"{where}: {message}" if where else message)
    return "; ".join(told)
