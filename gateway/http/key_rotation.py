"""Replacing a key over HTTP, through the supervisor."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway import errors
from gateway.auth.directory import KeyRecord, KeySource
from gateway.auth.keys import RandomBytes, make_key
from gateway.budgets.messages import BudgetChange, BudgetDeclaration
from gateway.clock import from_microseconds
from gateway.forms import FormSent
from gateway.http.admin_models import RotatedKey
from gateway.http.service import Service
from gateway.http.supervisor_calls import SupervisorCalls
from gateway.key_rotation import HOUR_US, is_void, succeed
from gateway.ledger.views import KeyCreation, KeyRevocation, StoredKey


async def rotate(
    service: Service,
    calls: SupervisorCalls,
    key_id: str,
    *,
    grace_hours: int,
    actor: str,
    random_bytes: RandomBytes,
    form: FormSent | None = None,
) -> RotatedKey:
    """Make a key's successor; the key itself goes on for as long as asked.

    Args:
        service: The worker's parts.
        calls: The supervisor.
        key_id: Of the key that is replaced.
        grace_hours: How long it goes on; 0 for not at all.
        actor: Who does it, for the audit log.
        random_bytes: A cryptographic source; for a form, one that gives the same each time.
        form: The page's form that asks for it, acted on once; None for a call of the API.

    Raises:
        KeyConflict: The key is declared in the configuration file, or void.
        KeyNotFound: There is none.
    """
    now_us = service.clock.wall_us()
    made = await calls.list_keys()
    key = make_key("live", random_bytes)
    before = made_before(key.key_id, made, now_us)
    if before is None:
        old = _rotatable(key_id, made, service.directory.record(key_id), now_us)
        successor = succeed(
            old,
            key_id=key.key_id,
            digest=service.hash_token(key.text.encode("ascii")),
            known=[*(one.record for one in made), *service.directory.records],
            budgets=await calls.budget_reports(),
        )
        record = successor.record
        creation = KeyCreation(record=record, actor=actor, owner=successor.owner, form=form)
        await _create(calls, creation, successor.budgets)
    else:
        record = before.record
        # Refused where the form asked for something else when it was sent before.
        await calls.create_key(KeyCreation(record=record, actor=actor, form=form))
    until_us = now_us + grace_hours * HOUR_US
    try:
        # A key that ends by then already, as after a form that was sent twice, stays as it is.
        await calls.revoke_key(KeyRevocation(key_id=key_id, actor=actor, at_us=until_us))
    except errors.GatewayError:
        if before is None:
            # Nobody has seen the successor, and nobody will.
            await calls.revoke_key(KeyRevocation(key_id=key.key_id, actor=actor))
        raise
    return RotatedKey(
        key=key.text,
        key_id=key.key_id,
        team=record.team,
        name=record.name,
        replaces=key_id,
        replaced_until=from_microseconds(until_us),
    )


async def _create(
    calls: SupervisorCalls, creation: KeyCreation, budgets: Sequence[BudgetDeclaration]
) -> None:
    """Make a key; its budgets first, so that at no moment it may spend more."""
    changes = [BudgetChange(name=one.name, budget=one, actor=creation.actor) for one in budgets]
    done: list[BudgetChange] = []
    try:
        for change in changes:
            await calls.change_budget(change)
            done.append(change)
        await calls.create_key(creation)
    except errors.GatewayError:
        if not any(one.record.key_id == creation.record.key_id for one in await calls.list_keys()):
            for change in done:
                await calls.change_budget(msgspec.structs.replace(change, budget=None))
        raise


def made_before(key_id: str, made: Sequence[StoredKey], now_us: int) -> StoredKey | None:
    """The key that a form made when it was sent before, None when it was not.

    Raises:
        KeyConflict: It is void by now.
    """
    found = next((one for one in made if one.record.key_id == key_id), None)
    if found is not None and is_void(found.record, now_us):
        raise errors.KeyConflict(
            "this form was sent before, and the key that it made is void by now;"
            " open the page again",
            param="key_id",
        )
    return found


def _rotatable(
    key_id: str, made: Sequence[StoredKey], record: KeyRecord | None, now_us: int
) -> StoredKey:
    if record is not None and record.source is KeySource.FILE:
        raise errors.KeyConflict(
            f"key {key_id!r} is declared in the configuration file; change its value there",
            param="key_id",
        )
    stored = next((one for one in made if one.record.key_id == key_id), None)
    if stored is None:
        raise errors.KeyNotFound(f"no key with the id {key_id!r}; `fareway keys list` shows them")
    if is_void(stored.record, now_us):
        raise errors.KeyConflict(f"key {key_id!r} is void; make a new one", param="key_id")
    return stored
