"""`/admin/v1`: keys, teams, spend, requests, status; with the administrator's key or a session.

`gateway.http.entrance` decides who gets in, before any body is looked at, and gives each handler
the rows that it may touch.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import anyio
import anyio.to_thread
import msgspec
from fastapi import APIRouter, Path, Query

from gateway import errors
from gateway.access.asking import Asking, Within
from gateway.access.restriction import Restriction
from gateway.access.roles import Viewer
from gateway.admission.floors import TeamRules
from gateway.auth.directory import KeyRecord, KeySource
from gateway.auth.keys import RandomBytes, make_key
from gateway.budgets.messages import BudgetChange
from gateway.clock import from_microseconds, to_microseconds
from gateway.finance.errors import FinanceError
from gateway.finance.spend_question import spend_query
from gateway.forms import FormSent
from gateway.http.admin_models import (
    CertificateView,
    CreatedKey,
    EffectiveQuery,
    KeyList,
    KeyView,
    NewKeyBody,
    PolicyAnswer,
    RequestList,
    RequestParams,
    RequestView,
    RevokedKey,
    RotatedKey,
    RotationBody,
    SpendAnswer,
    SpendParams,
    StatusAnswer,
    TeamList,
    TeamView,
)
from gateway.http.key_rotation import made_before, rotate
from gateway.http.service import Service
from gateway.http.supervisor_calls import SupervisorCalls
from gateway.ledger.errors import BadQuery
from gateway.ledger.report_document import report_document
from gateway.ledger.views import KeyCreation, KeyRevocation, RecentQuery, SpendQuery, StoredKey
from gateway.routing.scope import KeyScope, matches_glob
from gateway.settings.budget_orders import KeyBudgetOrder
from gateway.settings.limits import LimitSettings

PREFIX = "/admin/v1"


class AdminApi:
    """The routes.

    Args:
        service: The worker's parts; its key directory is replaced while this lives.
        calls: The supervisor.
        random_bytes: A cryptographic source, for new keys.
    """

    def __init__(
        self, service: Service, calls: SupervisorCalls, *, random_bytes: RandomBytes
    ) -> None:
        self._service = service
        self._calls = calls
        self._random_bytes = random_bytes

    def router(self) -> APIRouter:
        """The routes as FastAPI wants them."""
        router = APIRouter(prefix=PREFIX, tags=["administration"])
        gets: Sequence[tuple[str, Callable[..., object], str]] = (
            ("/keys", self.list_keys, "List every key"),
            ("/teams", self.list_teams, "List every team"),
            ("/spend", self.spend, "Report what was spent"),
            ("/requests", self.requests, "List the newest requests"),
            ("/status", self.status, "Tell how the gateway is"),
            ("/policy", self.policy, "Tell which privacy policy decides, and how it was proved"),
        )
        for path, endpoint, summary in gets:
            router.add_api_route(path, endpoint, methods=["GET"], summary=summary)
        router.add_api_route(
            "/keys", self.create_key, methods=["POST"], status_code=201, summary="Make a key"
        )
        router.add_api_route(
            "/keys/{key_id}", self.revoke_key, methods=["DELETE"], summary="Revoke a key"
        )
        router.add_api_route(
            "/keys/{key_id}/rotation",
            self.rotate_key,
            methods=["POST"],
            status_code=201,
            summary="Make a key's successor",
        )
        return router

    async def list_keys(self, within: Within) -> KeyList:
        """List every key, those of the configuration file included; never the keys themselves."""
        now_us = self._service.clock.wall_us()
        declared = [record for record in self._service.directory.records if _is_of_file(record)]
        views = [
            _key_view(record, now_us, stored=None)
            for record in declared
            if within.has(record.team, "")
        ]
        made = await self._calls.list_keys()
        views += [
            _key_view(one.record, now_us, stored=one) for one in made if _may_see(within, one)
        ]
        return KeyList(keys=sorted(views, key=lambda view: (view.team, view.name)))

    async def create_key(self, body: NewKeyBody, within: Within, asking: Asking) -> CreatedKey:
        """Make a key; every worker takes it when this answers. Its text is shown only now."""
        return await self.make_key(body, within, asking, random_bytes=self._random_bytes)

    async def make_key(
        self,
        body: NewKeyBody,
        within: Restriction,
        asking: Viewer,
        *,
        random_bytes: RandomBytes,
        form: FormSent | None = None,
    ) -> CreatedKey:
        """Make a key.

        Args:
            body: What it is to be.
            within: What may be touched.
            asking: Who does it.
            random_bytes: A cryptographic source; for a form, one that gives the same each time.
            form: The page's form that asks for it, acted on once; None for a call of the API.
        """
        self._check_order(body, within)
        key = make_key("live", random_bytes)
        record = KeyRecord(
            key_id=key.key_id,
            digest=self._service.hash_token(key.text.encode("ascii")),
            team=body.team,
            project=body.project or "",
            name=body.name,
            models=None if body.models is None else tuple(body.models),
            tags=tuple(sorted(set(body.tags))),
            expires_at_us=None if body.expires_at is None else to_microseconds(body.expires_at),
            source=KeySource.DATABASE,
            limits=None if body.limits is None else body.limits.amounts,
        )
        creation = KeyCreation(record=record, actor=asking.actor, owner=asking.person_id, form=form)
        await self._create(creation, body.budget)
        return CreatedKey(
            key=key.text,
            key_id=key.key_id,
            team=body.team,
            project=body.project,
            name=body.name,
            models=body.models,
            tags=sorted(set(body.tags)),
            limits=body.limits,
            expires_at=body.expires_at,
            budget=body.budget,
        )

    async def _create(self, creation: KeyCreation, budget: KeyBudgetOrder | None) -> None:
        """Make a key; its budget first, so that at no moment it may spend more."""
        if budget is None or await self._is_made(creation):
            await self._calls.create_key(creation)
            return
        name, order = budget.of_key(creation.record.key_id)
        finance = self._service.finance
        wanted = order.declaration(
            name,
            time_zone=finance.time_zone,
            fiscal_month=finance.fiscal_year_start_month,
            key_team=creation.record.team,
        )
        change = BudgetChange(name=name, budget=wanted, actor=creation.actor)
        await self._calls.change_budget(change)
        try:
            await self._calls.create_key(creation)
        except errors.GatewayError:
            if not await self._is_made(creation):
                await self._calls.change_budget(msgspec.structs.replace(change, budget=None))
            raise

    async def _is_made(self, creation: KeyCreation) -> bool:
        """Whether the form that asks for a key was sent before, and the key is there.

        Raises:
            KeyConflict: It is void by now.
        """
        if creation.form is None:
            return False
        now_us = self._service.clock.wall_us()
        made = made_before(creation.record.key_id, await self._calls.list_keys(), now_us)
        return made is not None

    async def rotate_key(
        self,
        key_id: Annotated[str, Path(max_length=128)],
        body: RotationBody,
        within: Within,
        asking: Asking,
    ) -> RotatedKey:
        """Make a key's successor with the same scope, limits and budgets; shown only now.

        The key itself goes on for as long as asked, so that its clients can change over.
        """
        return await self.replace_key(key_id, body, within, asking, random_bytes=self._random_bytes)

    async def replace_key(
        self,
        key_id: str,
        body: RotationBody,
        within: Restriction,
        asking: Viewer,
        *,
        random_bytes: RandomBytes,
        form: FormSent | None = None,
    ) -> RotatedKey:
        """Make a key's successor; the arguments are those of `make_key`."""
        await self._check_may_revoke(key_id, within)
        return await rotate(
            self._service,
            self._calls,
            key_id,
            grace_hours=body.grace_hours,
            actor=asking.actor,
            random_bytes=random_bytes,
            form=form,
        )

    async def revoke_key(
        self, key_id: Annotated[str, Path(max_length=128)], within: Within, asking: Asking
    ) -> RevokedKey:
        """Revoke a key; no worker takes it when this answers."""
        await self._check_may_revoke(key_id, within)
        record = self._service.directory.record(key_id)
        if record is not None and _is_of_file(record):
            raise errors.KeyConflict(
                f"key {key_id!r} is declared in the configuration file; take it out there",
                param="key_id",
            )
        await self._calls.revoke_key(KeyRevocation(key_id=key_id, actor=asking.actor))
        return RevokedKey(key_id=key_id)

    async def _check_may_revoke(self, key_id: str, within: Restriction) -> None:
        """Treat a key outside of what may be touched as one that does not exist."""
        if within.teams is None:
            return
        # Both are looked at in any case, so that the time tells nothing either.
        record = self._service.directory.record(key_id)
        made = await self._calls.list_keys()
        is_seen = any(one.record.key_id == key_id and _may_see(within, one) for one in made)
        if record is not None and _is_of_file(record):
            is_seen = within.has(record.team, "")
        if not is_seen:
            raise errors.KeyNotFound(
                f"no key with the id {key_id!r}; `fareway keys list` shows them"
            )

    async def list_teams(self, within: Within) -> TeamList:
        """List every team of the configuration."""
        teams = self._service.admission.teams
        seen = sorted(name for name in teams if within.has_team(name))
        return TeamList(teams=[_team_view(name, teams[name]) for name in seen])

    async def spend(self, params: Annotated[SpendParams, Query()], within: Within) -> SpendAnswer:
        """Sum what was spent, exactly; bounds are quarter-hours."""
        is_complete = await self._calls.catch_up()
        query = await self._spend_query(params, within)
        document = report_document(await self._calls.spend_report(query))
        return SpendAnswer.model_validate(
            {"query": EffectiveQuery.of(query), "is_complete": is_complete, **document},
            strict=True,
        )

    async def _spend_query(self, params: SpendParams, within: Restriction) -> SpendQuery:
        """What the ledger is asked; a file may be read, so that in a thread.

        Raises:
            InvalidField: A part of the question has no meaning.
        """
        ask = partial(
            spend_query,
            params.words(within),
            self._service.reporting,
            now_us=self._service.clock.wall_us(),
        )
        try:
            return await anyio.to_thread.run_sync(ask)
        except BadQuery as error:
            raise errors.InvalidField(str(error), param=error.param) from error
        except FinanceError as error:
            raise errors.InvalidField(str(error), param="currency") from error

    async def requests(
        self, params: Annotated[RequestParams, Query()], within: Within
    ) -> RequestList:
        """List the newest requests: who, where, why, how much; no content."""
        is_complete = await self._calls.catch_up()
        found = await self._calls.recent_requests(
            RecentQuery(count=params.limit, team=params.team, teams=within.sums)
        )
        return RequestList(
            limit=params.limit,
            team=params.team,
            is_complete=is_complete,
            requests=[RequestView.of(request) for request in found],
        )

    async def status(self) -> StatusAnswer:
        """Tell address, processes, engines and what the ledger has loaded."""
        status = dict(await self._calls.status())
        ledger, fault = None, ""
        try:
            ledger = await self._calls.loader()
        except errors.LedgerUnavailable as error:
            fault = error.message
        revision = status.pop("revision")
        return StatusAnswer.model_validate(
            {**status, "keys_revision": revision, "ledger": ledger, "ledger_fault": fault}
        )

    async def policy(self) -> PolicyAnswer:
        """Tell which privacy policy decides, and by which certificate it was proved."""
        certificate = self._service.certificate
        return PolicyAnswer(
            policy_digest=self._service.admission.policy.digest,
            certificate=None if certificate is None else CertificateView.of(certificate),
        )

    def _check_order(self, body: NewKeyBody, within: Restriction) -> None:
        """Refuse a key that could never be used as it is asked for.

        Raises:
            InvalidField: A value names something that does not exist.
            KeyConflict: The configuration file has a key of that name in the team.
        """
        rules = self._service.admission.teams.get(body.team)
        if rules is None or not within.has_team(body.team):
            known = sorted(name for name in self._service.admission.teams if within.has_team(name))
            raise _unknown(f"no team {body.team!r}", "team", body.team, known)
        if body.project is not None and body.project not in rules.projects:
            known = sorted(rules.projects)
            message = f"team {body.team!r} has no project {body.project!r}"
            raise _unknown(message, "project", body.project, known)
        self._check_models(body, rules, within)
        known_tags = sorted(self._service.admission.policy.source.tags)
        for tag in body.tags:
            if tag not in known_tags:
                raise _unknown(f"no privacy tag {tag!r}", "tags", tag, known_tags)
        if body.expires_at is not None:
            now_us = self._service.clock.wall_us()
            if to_microseconds(body.expires_at) <= now_us:
                raise errors.InvalidField("expires_at is in the past", param="expires_at")
        if any(
            _is_of_file(record) and (record.team, record.name) == (body.team, body.name)
            for record in self._service.directory.records
        ):
            raise errors.KeyConflict(
                f"the configuration file has a key named {body.name!r} in team {body.team!r};"
                " choose another name",
                param="name",
            )

    def _check_models(self, body: NewKeyBody, rules: TeamRules, within: Restriction) -> None:
        fleet = self._service.admission.fleet
        team = KeyScope(models=rules.models)
        known = sorted({*fleet.models, *fleet.aliases, *fleet.deployments})
        if within.teams is not None:  # names that the team may not use are none of its business
            known = [name for name in known if team.names(name)]
        for name in body.models or ():
            if not any(matches_glob(name, one) for one in known):
                raise _unknown(f"no model is called {name!r}", "models", name, known)
            if not team.names(name):
                raise errors.InvalidField(
                    f"team {body.team!r} may not use {name!r}", param="models"
                )


def _unknown(message: str, param: str, given: str, known: Sequence[str]) -> errors.InvalidField:
    near = difflib.get_close_matches(given[:128], known, n=3)
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    return errors.InvalidField(message + hint, param=param)


def _may_see(within: Restriction, key: StoredKey) -> bool:
    return within.has(key.record.team, key.owner)


def _is_of_file(record: KeyRecord) -> bool:
    return record.source is KeySource.FILE


def _key_view(record: KeyRecord, now_us: int, *, stored: StoredKey | None) -> KeyView:
    is_expired = record.expires_at_us is not None and record.expires_at_us <= now_us
    revoked_at_us = None if stored is None else stored.disabled_at_us
    return KeyView(
        key_id=record.key_id,
        team=record.team,
        project=record.project or None,
        name=record.name,
        models=None if record.models is None else list(record.models),
        tags=list(record.tags),
        limits=LimitSettings.of(record.limits),
        state="revoked" if record.disabled else "expired" if is_expired else "active",
        source=record.source.value,
        created_at=None if stored is None else from_microseconds(stored.created_at_us),
        expires_at=None
        if record.expires_at_us is None
        else from_microseconds(record.expires_at_us),
        revoked_at=None if revoked_at_us is None else from_microseconds(revoked_at_us),
    )


def _team_view(name: str, rules: TeamRules) -> TeamView:
    return TeamView(
        name=name,
        tags=sorted(rules.tags),
        projects=sorted(rules.projects),
        models=None if rules.models is None else list(rules.models),
    )
