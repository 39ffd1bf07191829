"""`fareway policy test`: what a file expects of the privacy policy, held against the policy.

cases:
- name: payments stays on our machines
team: payments
model: chat-small
tags: [gdpr]
at: 2027-01-31
allowed: [eu-vllm/llama-3.1-8b]
denied: {groq/llama-3.1-8b-instant: [self_hosted]}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Self

import typer
from pydantic import Field, ValidationError, model_validator

from gateway.cli.configured import load_guarded
from gateway.cli.faults import CliFault
from gateway.cli.options import ConfigOption, JsonOption
from gateway.cli.policy_instant import instant_of
from gateway.fleet import build_policy
from gateway.policy_proof import inventory_of
from gateway.privacy.errors import PolicyError, UnknownTags
from gateway.privacy.inventory import Holder, Inventory
from gateway.privacy.policy import Policy
from gateway.settings import merge, nodes
from gateway.settings.environment import process_environ
from gateway.settings.errors import ConfigError
from gateway.settings.scalars import Many, Name, Section, Word


class Case(Section):
    """What is expected of one request."""

    name: str
    """What it is about."""
    team: Name
    """Whose request."""
    project: Name | None = None
    """Project that it books on."""
    key: Name | None = None
    """Name of a key in the file."""
    model: Name
    """Model, alias or deployment."""
    tags: Many[Word] = ()
    """Tags that the request adds."""
    tools: Many[Word] = ()
    """Tools that it uses and that leave the machine."""
    at: str = ""
    """Day or instant; unset: now."""
    allowed: Many[Name] = ()
    """Deployments of the model that must be allowed."""
    denied: Mapping[Name, Many[Word]] = Field(default_factory=dict[str, tuple[str, ...]])
    """Deployments of the model that must be denied, each with attributes that must be missing, or
    the tags that must deny."""

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        if both := sorted(self.denied.keys() & set(self.allowed)):
            raise ValueError(f"{', '.join(both)} cannot be both allowed and denied")
        return self


class Expectations(Section):
    """The file."""

    cases: tuple[Case, ...] = Field(min_length=1)
    """What is expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where the policy is not as expected.

    Attributes:
        case: Name of the case.
        deployment: Which deployment, empty where it is about the whole request.
        expected: What the file says.
        found: What the policy says.
    """

    case: str
    deployment: str
    expected: str
    found: str


def hold_expectations(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML with the expectations.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hold expectations against the policy; exit 1 with every difference."""
    cases = read_cases(file)
    loaded = load_guarded(config, environ=process_environ())
    try:
        policy = build_policy(loaded.settings)
    except PolicyError as error:
        raise CliFault(str(error)) from error
    inventory = inventory_of(loaded.settings)
    found = [one for case in cases for one in differences(case, policy, inventory)]
    if as_json:
        told = {"cases": len(cases), "differences": [asdict(one) for one in found]}
        typer.echo(json.dumps(told, indent=2, ensure_ascii=False))
    else:
        for one in found:
            where = f", {one.deployment}" if one.deployment else ""
            typer.echo(f"{one.case}{where}: expected {one.expected}, found {one.found}")
        typer.echo(f"{len(cases)} cases, {len(found)} differences")
    if found:
        raise typer.Exit(1)


def read_cases(path: Path) -> tuple[Case, ...]:
    """Read and check a file of expectations.

    Raises:
        ConfigError: The file cannot be read, or is no YAML.
        CliFault: It says something else.
    """
    root, problems = merge.read(path)
    if problems:
        raise ConfigError(tuple(problems))
    try:
        return Expectations.model_validate(nodes.plain(root)).cases
    except ValidationError as error:
        said = "; ".join(
            f"{'.'.join(map(str, one['loc']))}: {one['msg']}"
            for one in error.errors(include_url=False)
        )
        raise CliFault(f"{path}: {said}") from error


def differences(case: Case, policy: Policy, inventory: Inventory) -> Iterator[Difference]:
    """Where the policy is not as a case expects.

    Args:
        case: What is expected.
        policy: What decides.
        inventory: Names and holders.
    """
    at = instant_of(case.at)
    holder = next((one for one in inventory.holders if _is_asking(one, case)), None)
    leads = {name: listed for name, listed, _ in inventory.names(policy.source)}.get(case.model)
    if holder is None or leads is None or case.model not in holder.names:
        what = "such a team, project or key" if holder is None else "that it may ask for the model"
        yield Difference(case=case.name, deployment="", expected=what, found="none")
        return
    carried = holder.floor.union(case.tags)
    try:
        allowed = policy.allowed(carried, at=at, tools=frozenset(case.tools))
    except UnknownTags as error:
        yield Difference(case=case.name, deployment="", expected="known tags", found=str(error))
        return
    for name in (*case.allowed, *case.denied):
        is_expected = name in case.allowed
        why = _why(policy, carried, case, name, at)
        if name not in leads:
            found = f"that {case.model} does not stand for it"
        elif name in allowed:
            found = "allowed"
        else:
            found = f"denied by {', '.join(why)}"
        expected = "allowed" if is_expected else "denied"
        wanted = case.denied.get(name, ())
        if wanted:
            expected = f"denied by {', '.join(wanted)}"
        is_right = name in leads and (name in allowed) is is_expected and set(wanted) <= set(why)
        if not is_right:
            yield Difference(case=case.name, deployment=name, expected=expected, found=found)


def _is_asking(holder: Holder, case: Case) -> bool:
    if case.key is not None:
        return holder.team == case.team and holder.key == case.key
    project = case.project or ""
    return (holder.team, holder.project, holder.key) == (case.team, project, "")


def _why(
    policy: Policy, carried: frozenset[str], case: Case, name: str, at: datetime
) -> tuple[str, ...]:
    """What stands in the way: denying tags, missing attributes, tools that lack something."""
    lacking = policy.tools_lacking(carried, case.tools, at=at)
    return (*policy.denied_by(carried), *policy.missing(carried, name, at=at), *lacking)
