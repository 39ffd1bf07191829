"""`GET /v1/models` and `GET /v1/models/{id}`: what the key may ask for, in OpenAI's shape."""

from __future__ import annotations

import msgspec

from gateway.admission.admit import refusal_error
from gateway.auth.directory import Principal
from gateway.clock import from_microseconds
from gateway.http.service import Service
from gateway.routing.refusal import refuse_scope, refuse_unknown
from gateway.routing.resolve import Resolved, is_authorised, resolve, usable_names
from gateway.routing.scope import KeyScope
from gateway.routing.snapshot import FleetSnapshot


class _Model(msgspec.Struct):
    id: str
    object: str
    created: int
    owned_by: str


class _ModelList(msgspec.Struct):
    object: str
    data: list[_Model]


def model_list(service: Service, principal: Principal) -> bytes:
    """Every model, alias and deployment that the key may ask for."""
    snapshot, scope = _view(service, principal)
    entries = [_entry(service, name) for name in usable_names(snapshot, scope)]
    return msgspec.json.encode(_ModelList(object="list", data=entries))


def model_entry(service: Service, principal: Principal, name: str) -> bytes:
    """One model, alias or deployment.

    Raises:
        ModelNotFound: No such name.
        ModelNotAllowed: The key may not use it.
    """
    snapshot, scope = _view(service, principal)
    found = resolve(snapshot, name, scope=scope)
    if not isinstance(found, Resolved):
        raise refusal_error(refuse_unknown(found.name, found.near))
    if not is_authorised(snapshot, found, scope):
        raise refusal_error(refuse_scope(name))
    return msgspec.json.encode(_entry(service, name))


def _view(service: Service, principal: Principal) -> tuple[FleetSnapshot, KeyScope]:
    admission = service.admission
    at = from_microseconds(service.clock.wall_us())
    snapshot = admission.fleet.snapshot(
        providers=admission.providers, health=admission.health, at=at
    )
    return snapshot, admission.scope(principal)


def _entry(service: Service, name: str) -> _Model:
    return _Model(
        id=name,
        object="model",
        created=service.started_s,
        owned_by=name.partition("/")[0] if "/" in name else "fareway",
    )
