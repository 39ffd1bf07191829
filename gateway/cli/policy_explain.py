"""`fareway policy explain`: what the privacy policy makes of a request, and why.

Everything is decided as in a worker; nothing is sent, and nothing of the content is printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

import anyio
import typer

from gateway.admission.admit import Admission
from gateway.cli.configured import load_guarded
from gateway.cli.explain import (
    DEFAULT_PROMPT,
    Asked,
    ExplainedRequest,
    body_of,
    check_said,
    control_headers,
    explain_asked,
)
from gateway.cli.options import ConfigOption, JsonOption
from gateway.clock import from_microseconds, system_clock
from gateway.detect.look import Finding
from gateway.dialects import openai_chat
from gateway.privacy.policy import Policy
from gateway.settings.environment import process_environ


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the policy says of one deployment.

    Attributes:
        deployment: `provider/model-id`.
        is_allowed: Whether the request may go there.
        missing: Required attributes that it lacks, sorted.
        has: Attributes that count there now, sorted.
    """

    deployment: str
    is_allowed: bool
    missing: tuple[str, ...]
    has: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyExplained:
    """What the policy makes of a request.

    Attributes:
        team: Who asks, empty for none.
        key_id: Key that asks, empty where only a team was asked about.
        model: The name that was asked for.
        policy_digest: Of the policy.
        tags: Every tag that the request carries, closed, with where it comes from.
        detected: What detectors find: kind, place and count; never the value.
        need: Every required attribute, with the tags that require it.
        denied_by: Tags with which nothing may be reached.
        tools: Tools that leave the machine, with the attributes that each lacks.
        verdicts: Deployments of the name, in the operator's order.
        implications: What an attribute gives beside itself.
    """

    team: str
    key_id: str
    model: str
    policy_digest: str
    tags: Mapping[str, str]
    detected: tuple[Finding, ...]
    need: Mapping[str, tuple[str, ...]]
    denied_by: tuple[str, ...]
    tools: Mapping[str, tuple[str, ...]]
    verdicts: tuple[Verdict, ...]
    implications: Mapping[str, tuple[str, ...]]


def explain(
    team: Annotated[str, typer.Option("--team", help="Team that asks.")] = "",
    key: Annotated[str, typer.Option("--key", help="Id of the key that asks.")] = "",
    project: Annotated[str, typer.Option("--project", help="Project to book on.")] = "",
    model: Annotated[str, typer.Option("--model", help="Model, alias or deployment.")] = "",
    tags: Annotated[str, typer.Option("--tags", help="Privacy tags to add: a,b.")] = "",
    body: Annotated[
        Path | None,
        typer.Option("--body", help="File with a whole chat body; - reads it from standard input."),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which tags a request carries and why, what they require, and who has it."""
    check_said(who=team or key, key_option="--key", what=model or body)
    loaded = load_guarded(config, environ=process_environ())
    asked = Asked(
        team=team,
        key_id=key,
        body=body_of(body, prompt=DEFAULT_PROMPT, model=model, max_tokens=None),
        headers=control_headers({"tags": tags, "project": project}),
    )
    found, admission = anyio.run(explain_asked, loaded, asked)
    shown = explained(
        found, admission, body=asked.body, at=from_microseconds(system_clock().wall_us())
    )
    if as_json:
        typer.echo(json.dumps(asdict(shown), indent=2, ensure_ascii=False))
    else:
        typer.echo("\n".join(_lines(shown)))


def explained(
    found: ExplainedRequest, admission: Admission, *, body: bytes, at: datetime
) -> PolicyExplained:
    """What the policy makes of a request that was decided about.

    Args:
        found: The decision.
        admission: What decided.
        body: The request's.
        at: Aware instant, for claims.
    """
    policy = admission.policy
    source = policy.source
    decision = found.decision
    asked = [*(one.deployment for one in decision.candidates)]
    asked += [one.deployment for one in decision.excluded]
    tools = openai_chat.parse(body).tools
    need = {
        attribute: tuple(tag for tag in found.tags if attribute in source.tags[tag].require)
        for tag in found.tags
        for attribute in source.tags[tag].require
    }
    return PolicyExplained(
        team=found.team,
        key_id=found.key_id,
        model=decision.asked,
        policy_digest=policy.digest,
        tags=found.tags,
        detected=found.detected,
        need=dict(sorted(need.items())),
        denied_by=policy.denied_by(found.tags),
        tools={
            tool: policy.tools_lacking(found.tags, [tool], at=at).get(tool, ())
            for tool in sorted(tools)
        },
        verdicts=tuple(_verdict(policy, found, name, at) for name in dict.fromkeys(asked)),
        implications={one: tuple(sorted(gives)) for one, gives in source.implications.items()},
    )


def _verdict(policy: Policy, found: ExplainedRequest, name: str, at: datetime) -> Verdict:
    known = next(one for one in policy.source.deployments if one.name == name)
    has = {
        claim.attribute
        for claim in known.claims
        if claim.counts_at(at) and (not claim.condition or claim.condition in known.enforces)
    }
    return Verdict(
        deployment=name,
        is_allowed=name in found.allowed,
        missing=policy.missing(found.tags, name, at=at),
        has=tuple(sorted(has)),
    )


def _lines(shown: PolicyExplained) -> Iterator[str]:
    yield f"{shown.model} for team {shown.team}" + (f", key {shown.key_id}" if shown.key_id else "")
    yield "tags:" if shown.tags else "tags: none"
    for tag, origin in shown.tags.items():
        yield f"  {tag}: {origin}"
    for one in shown.detected:
        what = one.detector if one.kind == one.detector else f"{one.detector} ({one.kind})"
        yield f"found: {what} at {one.path}, {one.count}"
    yield "required:" if shown.need else "required: nothing"
    for attribute, tags in shown.need.items():
        yield f"  {attribute}: by {', '.join(tags)}"
    if shown.denied_by:
        yield f"denied everywhere: by {', '.join(shown.denied_by)}"
    for tool, missing in shown.tools.items():
        said = f"lacks {', '.join(missing)}" if missing else "has all that is required"
        yield f"tool {tool}: {said}"
    for one in shown.verdicts:
        has = f" (has {', '.join(one.has)})" if one.has else " (nothing is claimed of it)"
        if one.is_allowed:
            said = "allowed"
        elif one.missing:
            said = f"lacks {', '.join(one.missing)}"
        else:
            said = "denied"
        yield f"{one.deployment}: {said}{has}"
    for attribute, gives in shown.implications.items():
        yield f"{attribute} gives {', '.join(gives)}"
    yield f"policy {shown.policy_digest[:12]}"
