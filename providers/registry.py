"""From descriptions of providers to providers, by kind.

Kinds are the rows of `catalog.toml` and the embedded engine; a kind without a row cannot be built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from local_engine.api import Done
from providers.codecs.enforced import Members
from providers.compatible import Account, OpenAiCompatibleProvider, Row, load_catalog
from providers.contract import Capabilities, OnDisconnect, Provider
from providers.native.local import EngineLink, LocalProvider
from providers.transport import TransportOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatibleDescription:
    """A provider on an OpenAI-compatible wire.

    Attributes:
        name: Its name in the configuration.
        kind: A row of the catalogue, for example `openai_compatible`.
        base_url: Its address, None for the vendor's own.
        api_key: Our key, None where none is needed.
        extra_headers: Sent with each request.
        model_capabilities: What single models can do, by the upstream's model name.
        transport_options: How connections are made, None for the defaults.
        on_disconnect: What the operator says about clients that leave, None for the row's rule.
        enforced: Members of the body that every request has, whatever its client sent.
    """

    name: str
    kind: str = "openai_compatible"
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    extra_headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    model_capabilities: Mapping[str, Capabilities] = field(default_factory=dict[str, Capabilities])
    transport_options: TransportOptions | None = None
    on_disconnect: OnDisconnect | None = None
    enforced: Members = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDescription:
    """The embedded engine.

    Attributes:
        name: Its name in the configuration.
        links: A link per model id; shared with whoever supervises the engines.
        on_done: Told the deployment and the engine's account of each generation.
    """

    name: str
    links: Mapping[str, EngineLink]
    on_done: Callable[[str, Done], None] | None = None


Description = CompatibleDescription | LocalDescription


def build_providers(
    descriptions: Iterable[Description],
    *,
    clock: Callable[[], datetime],
    catalog: Mapping[str, Row] | None = None,
) -> dict[str, Provider]:
    """Make providers by name; nothing is connected yet.

    Args:
        descriptions: Names are unique.
        clock: The present instant in UTC.
        catalog: Rows by kind; None loads the shipped ones.

    Raises:
        ValueError: Everything that is wrong, one line per provider.
    """
    rows = load_catalog() if catalog is None else catalog
    providers: dict[str, Provider] = {}
    problems: list[str] = []
    for description in descriptions:
        if description.name in providers:
            problems.append(f"{description.name}: the name is used twice")
            continue
        try:
            providers[description.name] = _build(description, rows, clock)
        except ValueError as fault:
            problems.append(f"{description.name}: {fault}")
    if problems:
        raise ValueError("\n".join(problems))
    return providers


async def close_all(providers: Iterable[Provider]) -> None:
    """Close every provider, also when one of them fails to.

    Raises:
        ExceptionGroup: What went wrong.
    """
    faults: list[Exception] = []
    for provider in providers:
        try:
            await provider.close()
        except Exception as fault:  # noqa: BLE001 kept and raised below
            faults.append(fault)
    if faults:
        raise ExceptionGroup("closing providers failed", faults)


def _build(
    description: Description, rows: Mapping[str, Row], clock: Callable[[], datetime]
) -> Provider:
    if isinstance(description, LocalDescription):
        return LocalProvider(description.name, description.links, on_done=description.on_done)
    row = rows.get(description.kind)
    if row is None:
        raise ValueError(f"kind {description.kind} is not built")
    base_url = description.base_url or row.base_url
    if base_url is None:
        raise ValueError(f"kind {description.kind} needs a base_url")
    account = Account(
        name=description.name,
        base_url=base_url,
        api_key=description.api_key,
        extra_headers=description.extra_headers,
        model_capabilities=description.model_capabilities,
        on_disconnect=description.on_disconnect,
        enforced=description.enforced,
    )
    return OpenAiCompatibleProvider(
        account, row, clock=clock, transport_options=description.transport_options
    )
