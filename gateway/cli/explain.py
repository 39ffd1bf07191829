"""`fareway explain`: the routing decision for a request, without sending it.

The same functions decide here as in a worker: the dialect parses the body, `Admission.admit` closes
the tags and decides. Nothing is opened upstream and no upstream key is read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import anyio
import msgspec
import typer

from gateway.admission.admit import Admission, Admitted
from gateway.admission.detected import with_detected
from gateway.app import build_admission
from gateway.auth.directory import KeyRecord, Principal
from gateway.channel import ChannelError
from gateway.cli.admin import NoGateway, call_gateway
from gateway.cli.configured import load_guarded
from gateway.cli.faults import CliFault
from gateway.cli.options import ConfigOption, JsonOption
from gateway.clock import system_clock
from gateway.detect.detection import Detected, Detection
from gateway.detect.look import Finding
from gateway.detection_setup import build_detection
from gateway.dialects import openai_chat
from gateway.dialects.controls import Controls, read_controls
from gateway.errors import GatewayError
from gateway.health import HealthBoard
from gateway.http.errors import row_of
from gateway.ledger.errors import LedgerError
from gateway.ledger.views import StoredKey
from gateway.policy_proof import PolicyUnproved
from gateway.process.engines import READY
from gateway.process.messages import ServiceStatus
from gateway.process.provider_setup import engine_links, set_up_providers
from gateway.routing.explanation import ExplainedCandidate, Explanation
from gateway.routing.explanation import explain as explain_decision
from gateway.settings.database import connection_url
from gateway.settings.declared_keys import fixed_key_records
from gateway.settings.environment import process_environ
from gateway.settings.loader import LoadedConfig
from gateway.settings.providers import ServerProvider
from gateway.settings.unbuilt import BUILT_KINDS

DEFAULT_PROMPT = "Hello!"

HEALTH_ASSUMED = "no gateway of this configuration runs; every deployment is taken to be up"
HEALTH_KNOWN = "states of local engines are those of the running gateway"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The request that is asked about, as the client would send it.

    Attributes:
        principal: Who would send it.
        body: Its body.
        headers: Its request controls.
    """

    principal: Principal
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedRequest:
    """What would happen to a request, and why.

    Attributes:
        team: Team, empty for none.
        key_id: Key, empty where only a team was asked about.
        project: What it would be booked on, empty for none.
        tags: Every tag that the request carries, closed, with where it comes from.
        allowed: Deployments of the whole fleet that these tags may reach, sorted.
        decision: Candidates, exclusions, refusal.
        detected: What detectors find, whether their tags are added or not; never the values.
        health: Where the states of deployments come from.
    """

    team: str
    key_id: str
    project: str
    tags: Mapping[str, str]
    allowed: tuple[str, ...]
    decision: Explanation
    detected: tuple[Finding, ...]
    health: str

    def to_json(self) -> dict[str, object]:
        """Plain values; money is text."""
        return asdict(self)


def explain(
    team: Annotated[str, typer.Option("--team", help="Team that asks.")] = "",
    key_id: Annotated[str, typer.Option("--key-id", help="Key that asks; gives the team.")] = "",
    project: Annotated[str, typer.Option("--project", help="Project to book on.")] = "",
    model: Annotated[str, typer.Option("--model", help="Model, alias or deployment.")] = "",
    tags: Annotated[str, typer.Option("--tags", help="Privacy tags to add: a,b.")] = "",
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", help="Most output tokens.", show_default=False)
    ] = None,
    prompt: Annotated[str, typer.Option("--prompt", help="The user's message.")] = DEFAULT_PROMPT,
    body: Annotated[
        Path | None,
        typer.Option("--body", help="File with a whole chat body; - reads it from standard input."),
    ] = None,
    max_usd: Annotated[str, typer.Option("--max-usd", help="Ceiling of its cost in USD.")] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show where a request would go, why, and at what cost; nothing is sent."""
    check_said(who=team or key_id, key_option="--key-id", what=model or body)
    if body is not None and prompt != DEFAULT_PROMPT:
        raise typer.BadParameter("give --prompt or --body, not both")
    loaded = load_guarded(config, environ=process_environ())
    asked = Asked(
        team=team,
        key_id=key_id,
        body=body_of(body, prompt=prompt, model=model, max_tokens=max_tokens),
        headers=control_headers({"tags": tags, "project": project, "max-usd": max_usd}),
    )
    found, _ = anyio.run(explain_asked, loaded, asked)
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=2, ensure_ascii=False))
    else:
        typer.echo("\n".join(_lines(found)))


def check_said(*, who: str, key_option: str, what: str | Path | None) -> None:
    """Refuse a question that does not say who asks, or for what.

    Args:
        who: Team or key.
        key_option: How the command calls the key's option.
        what: Model or file with a body.

    Raises:
        BadParameter: One of them is missing.
    """
    if not who:
        raise typer.BadParameter(f"say who asks: --team or {key_option}")
    if not what:
        raise typer.BadParameter("say what is asked for: --model or --body")


def control_headers(controls: Mapping[str, str]) -> tuple[tuple[bytes, bytes], ...]:
    """Request controls as a client sends them; empty ones are not sent."""
    return tuple(
        (f"x-fareway-{name}".encode(), value.encode("utf-8", "surrogateescape"))
        for name, value in controls.items()
        if value
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a user asks about.

    Attributes:
        team: Who asks, empty where a key says so.
        key_id: Key that asks, empty for none.
        body: As the client would send it.
        headers: Request controls.
    """

    team: str
    key_id: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]


def explain_request(
    question: Question, admission: Admission, detection: Detection, *, wall_us: int, health: str
) -> ExplainedRequest:
    """Decide about a request that is not sent.

    Args:
        question: The request.
        admission: What decides.
        detection: What adds tags for what the body holds.
        wall_us: Microseconds since the epoch, for prices and claims.
        health: Where the states of deployments come from.

    Raises:
        GatewayError: The request would be refused before routing.
    """
    principal = question.principal
    parsed = openai_chat.parse(question.body)
    given = read_controls(question.headers, parsed.metadata)
    detected = detection.look(parsed.fields, has_media=parsed.has_media)
    controls = with_detected(given, detected)
    admitted = admission.admit(principal, parsed, controls, wall_us=wall_us)
    return ExplainedRequest(
        team=principal.team,
        key_id=principal.key_id,
        project=admitted.project,
        tags=dict(_tag_origins(admission, principal, given, admitted, detected)),
        allowed=tuple(sorted(admitted.allowed)),
        decision=explain_decision(admitted.decision),
        detected=detected.findings,
        health=health,
    )


def _tag_origins(
    admission: Admission,
    principal: Principal,
    controls: Controls,
    admitted: Admitted,
    detected: Detected,
) -> Iterator[tuple[str, str]]:
    source = admission.policy.source
    team = admission.teams.get(principal.team)
    for tag in admitted.tags:
        origins: list[str] = []
        if tag in source.floor:
            origins.append("floor of the configuration")
        if team is not None and tag in team.tags:
            origins.append(f"floor of team {principal.team}")
        if team is not None and tag in team.projects.get(admitted.project, ()):
            origins.append(f"floor of project {admitted.project}")
        if tag in principal.tags:
            origins.append("the key")
        if tag in controls.tags:
            origins.append("the request")
        if tag in detected.tags:
            origins.append(f"detected: {detected.sources[tag]}")
        implying = [one for one in admitted.tags if tag in source.tags[one].implies]
        if implying:
            origins.append(f"implied by {', '.join(implying)}")
        yield tag, "; ".join(origins)


async def explain_asked(config: LoadedConfig, asked: Asked) -> tuple[ExplainedRequest, Admission]:
    """Decide about a request that is not sent, and give what decided with it.

    Raises:
        CliFault: It would be refused before routing, or nothing can be decided.
    """
    clock = system_clock()
    board = HealthBoard(monotonic_s=clock.monotonic_s)
    status, keys = await _ask_gateway(config, wants_keys=bool(asked.key_id))
    for deployment, state in () if status is None else status.engines.items():
        board.set_fault(deployment, None if state == READY else state)
    for deployment, speed in () if status is None else status.speeds.items():
        board.note_speed(deployment, prefill_tps=speed.prefill_tps, decode_tps=speed.decode_tps)
    wall_us = clock.wall_us()
    question = Question(
        principal=_principal(config, asked, keys, now_us=wall_us),
        body=asked.body,
        headers=asked.headers,
    )
    _check_kinds(config)
    try:
        admission = build_admission(
            config.settings,
            providers=set_up_providers(
                _without_keys(config), environ={}, links=engine_links(config)
            ),
            health=board,
            clock=clock,
        )
        found = explain_request(
            question,
            admission,
            build_detection(config.settings.privacy.detect),
            wall_us=wall_us,
            health=HEALTH_ASSUMED if status is None else HEALTH_KNOWN,
        )
    except GatewayError as error:
        row = row_of(error)
        raise CliFault(f"refused with {row.status} {row.code}: {error.message}") from error
    except (PolicyUnproved, ValueError) as error:
        raise CliFault(str(error)) from error
    return found, admission


async def _ask_gateway(
    config: LoadedConfig, *, wants_keys: bool
) -> tuple[ServiceStatus | None, list[StoredKey]]:
    """The running gateway's status, and the keys of the database, from it or from the file."""
    try:
        status = await call_gateway(config, "status", result_type=ServiceStatus)
        keys: list[StoredKey] = []
        if wants_keys:
            keys = await call_gateway(config, "list_keys", result_type=list[StoredKey])
    except NoGateway:
        return None, _keys_at_rest(config) if wants_keys else []
    except ChannelError as error:
        raise CliFault(f"the running gateway did not answer: {error}") from error
    return status, keys


def _keys_at_rest(config: LoadedConfig) -> list[StoredKey]:
    from gateway.ledger.database import is_postgresql, sqlite_path  # for a stopped gateway only
    from gateway.ledger.keys import list_keys
    from gateway.ledger.reading import read_ledger

    url = connection_url(config, environ=process_environ())
    try:
        if not is_postgresql(url) and not sqlite_path(url).exists():
            return []
        return list(read_ledger(url, list_keys))
    except LedgerError as error:
        raise CliFault(str(error)) from error


def _principal(
    config: LoadedConfig, asked: Asked, keys: list[StoredKey], *, now_us: int
) -> Principal:
    teams = config.settings.teams
    if not asked.key_id:
        if asked.team not in teams:
            known = ", ".join(sorted(teams)) or "none"
            raise CliFault(f"no team {asked.team!r} in the configuration; there are: {known}")
        return Principal(key_id="", team=asked.team, project="", key_name="", models=None)
    record = _key_record(config, asked.key_id, keys)
    if asked.team and asked.team != record.team:
        raise CliFault(f"key {asked.key_id} belongs to team {record.team!r}, not {asked.team!r}")
    if record.disabled:
        raise CliFault(f"key {asked.key_id} was revoked; requests with it get 401")
    if record.expires_at_us is not None and record.expires_at_us <= now_us:
        raise CliFault(f"key {asked.key_id} has expired; requests with it get 401")
    return Principal(
        key_id=record.key_id,
        team=record.team,
        project=record.project,
        key_name=record.name,
        models=None if record.models is None else frozenset(record.models),
        tags=frozenset(record.tags),
    )


def _key_record(config: LoadedConfig, key_id: str, keys: list[StoredKey]) -> KeyRecord:
    found = next((one.record for one in keys if one.record.key_id == key_id), None)
    if found is None:
        declared = fixed_key_records(config, environ=process_environ(), pepper=bytes(32))
        found = next((record for record in declared if record.key_id == key_id), None)
    if found is None:
        raise CliFault(f"no key {key_id!r}; `fareway keys list` shows the ids")
    return found


def _check_kinds(config: LoadedConfig) -> None:
    for name, provider in config.settings.providers.items():
        if provider.kind not in BUILT_KINDS:
            place = config.locate("providers", name, "kind")
            raise CliFault(
                f"{place.file}:{place.line}: providers of kind {provider.kind} are not built yet,"
                " so nothing can be explained with them; take them out"
            )


def _without_keys(config: LoadedConfig) -> LoadedConfig:
    """The configuration without upstream keys: deciding needs none, and nothing is sent."""
    unset = {"api_key_env": None, "api_key_file": None, "api_key_ref": None}
    providers = {
        name: provider.model_copy(update=unset)
        if isinstance(provider, ServerProvider)
        else provider
        for name, provider in config.settings.providers.items()
    }
    return replace(config, settings=config.settings.model_copy(update={"providers": providers}))


def body_of(path: Path | None, *, prompt: str, model: str, max_tokens: int | None) -> bytes:
    """The body to ask about; options replace the members of a given one."""
    members: dict[str, object] = {}
    if path is None:
        members["messages"] = [{"role": "user", "content": prompt}]
    else:
        given = _read(path)
        if not model and max_tokens is None:
            return given
        try:
            members.update(msgspec.json.decode(given, type=dict[str, msgspec.Raw]))
        except msgspec.DecodeError:
            return given  # the dialect says what is wrong with it
    if model:
        members["model"] = model
    if max_tokens is not None:
        members.pop("max_completion_tokens", None)
        members["max_tokens"] = max_tokens
    return msgspec.json.encode(members)


def _read(path: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise CliFault(f"{path} cannot be read: {error.strerror}") from error


def _lines(found: ExplainedRequest) -> Iterator[str]:
    who = f"team {found.team}" + (f", key {found.key_id}" if found.key_id else "")
    yield who + (f", project {found.project}" if found.project else "")
    yield "tags:" if found.tags else "tags: none"
    for tag, origin in found.tags.items():
        yield f"  {tag}: {origin}"
    for one in found.detected:
        what = one.detector if one.kind == one.detector else f"{one.detector} ({one.kind})"
        yield f"found: {what} at {one.path}, {one.count}"
    yield f"allowed by them: {', '.join(found.allowed) or 'nothing'}"
    decision = found.decision
    asked = (
        decision.asked
        if decision.model in (None, decision.asked)
        else (f"{decision.asked} (model {decision.model})")
    )
    yield f"{asked}, strategy {decision.strategy}:"
    for one in decision.candidates:
        # An unknown price is the reason of its rank already.
        cost = f"; {_cost(one)}" if one.unpriced is None else ""
        yield f"  {one.rank}. {one.deployment}: {one.reason}{cost}"
    for exclusion in decision.excluded:
        yield f"  no {exclusion.deployment}: {exclusion.stage}: {exclusion.reason}"
    if decision.refusal is not None:
        yield f"refused with {decision.refusal.code}: {decision.refusal.message}"
    yield f"({found.health})"


def _cost(one: ExplainedCandidate) -> str:
    bound = "without a bound" if one.upper_bound_usd is None else f"at most {one.upper_bound_usd}"
    nominal = ", nominal price" if one.is_nominal else ""
    return f"expected {one.expected_usd} USD, {bound}{nominal}"
