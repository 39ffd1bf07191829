"""`fareway spend reconcile`: vendors' bills, differences, proposals, adjustments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gateway.cli.configured import load_guarded
from gateway.cli.faults import CliFault
from gateway.cli.finance_calls import actor, ask
from gateway.cli.options import ConfigOption, JsonOption
from gateway.cli.spend_close import month_of_option
from gateway.finance.bill_messages import (
    ImportedFile,
    ImportFile,
    ImportReply,
    ListImports,
    ListRuns,
    Overlap,
    ReconciliationRun,
    ShowRun,
    SourceKind,
)
from gateway.finance.form_messages import FILE_BYTES_MAX
from gateway.finance.generation_messages import Generation, GenerationState, ListGenerations
from gateway.finance.messages import (
    Adjustment,
    AdjustmentKind,
    AdjustmentLine,
    Decide,
    ListAdjustments,
    ListProposals,
    Proposal,
    Propose,
)
from gateway.finance.orders import reconcile_order
from gateway.finance.shown import coverage_lines, coverage_text
from gateway.finance.spend_question import Reporting
from gateway.settings.environment import process_environ
from gateway.settings.loader import LoadedConfig
from pricing.money import format_usd, parse_usd

app = typer.Typer(
    help="Compare with vendors' bills, and correct.", rich_markup_mode=None, no_args_is_help=True
)

MonthOption = Annotated[
    str, typer.Option("--month", help="Which month, such as 2026-10.", show_default=False)
]


@app.command("import", short_help="Take a vendor's usage or invoice file.")
def import_file(
    file: Annotated[Path, typer.Argument(help="What the vendor gave.", show_default=False)],
    source: Annotated[SourceKind, typer.Option("--source", help="Its format.")],
    account: Annotated[
        str, typer.Option("--account", help="Provider of the configuration that it is about.")
    ],
    mapping: Annotated[
        Path | None,
        typer.Option("--mapping", help="Mapping file (YAML), for csv.", show_default=False),
    ] = None,
    issued_on: Annotated[
        str, typer.Option("--issued-on", help="Day of the invoice, if the file does not say.")
    ] = "",
    number: Annotated[
        str, typer.Option("--number", help="Number of the invoice, if the file does not say.")
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="It takes the place of files for the same days.")
    ] = False,
    add: Annotated[
        bool, typer.Option("--add", help="It counts beside files for the same days.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take a file as a whole, or refuse it with every wrong line.

    The same file twice changes nothing.
    """
    if replace and add:
        raise typer.BadParameter("take one of --replace and --add")
    loaded = load_guarded(config, environ=process_environ())
    check_provider(loaded, account)
    overlap = Overlap.REPLACE if replace else Overlap.ADD if add else Overlap.REFUSE
    rates, rates_name = rates_of(loaded)
    order = ImportFile(
        actor=actor(),
        source=source,
        account=account,
        file_name=file.name,
        content=_content(file),
        mapping=None if mapping is None else _content(mapping).decode("utf-8", "replace"),
        mapping_name="" if mapping is None else mapping.name,
        issued_on=issued_on,
        number=number,
        overlap=overlap,
        rates=rates,
        rates_name=rates_name,
    )
    reply = ask(loaded, order, ImportReply)
    if as_json:
        _json(reply)
    else:
        typer.echo(reply.sentence)


@app.command("imports", short_help="List files that were taken.")
def list_imports(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List every import, newest first, those that could not be read included."""
    found = ask(_loaded(config), ListImports(), tuple[ImportedFile, ...])
    if as_json:
        _json(found)
        return
    for one in found:
        days = f"{one.first_day} to {one.last_day}" if one.state == "ok" else "UNREADABLE"
        replaced = "" if one.replaced_by is None else f", replaced by {one.replaced_by}"
        typer.echo(
            f"{one.batch_id}  {one.account}  {one.source}  {days}  {one.file_name}{replaced}"
        )


@app.command("run", short_help="Compare a month, explain each difference.")
def run(
    month: MonthOption,
    proposes: Annotated[
        bool, typer.Option("--propose/--no-propose", help="Whether to propose adjustments.")
    ] = True,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare what vendors bill with what the ledger holds; coverage comes first."""
    loaded = _loaded(config)
    order = reconcile_order(
        loaded.settings.finance.reconciliation,
        actor=actor(),
        month=month_of_option(month),
        proposes=proposes,
    )
    _show(ask(loaded, order, ReconciliationRun), as_json=as_json)


@app.command("runs", short_help="List reconciliation runs.")
def list_runs(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List runs, newest first, with their coverage."""
    found = ask(_loaded(config), ListRuns(), tuple[ReconciliationRun, ...])
    if as_json:
        _json(found)
        return
    for one in found:
        difference = one.billed_pico_usd - one.ledger_pico_usd - one.adjusted_pico_usd
        coverage = coverage_text(one.accounts)
        typer.echo(
            f"{one.run_id}  {one.month}  {one.state}  coverage {coverage}, differences"
            f" {format_usd(difference)} USD"
        )


@app.command("show", short_help="Show a run with every difference.")
def show(
    run_id: Annotated[int, typer.Argument(help="Number of the run.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a run: coverage by provider, and one sentence for each difference."""
    _show(ask(_loaded(config), ShowRun(run_id=run_id), ReconciliationRun), as_json=as_json)


@app.command("generations", short_help="Match generations of bills by id.")
def list_generations(
    month: MonthOption,
    account: Annotated[
        str | None, typer.Option("--account", help="Only of a provider.", show_default=False)
    ] = None,
    state: Annotated[
        GenerationState | None,
        typer.Option("--state", help="Only those; unset: all but same.", show_default=False),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Match generations of a bill (openrouter-generations) with our attempts, one by one."""
    query = ListGenerations(month=month_of_option(month), account=account, state=state)
    found = ask(_loaded(config), query, tuple[Generation, ...])
    if as_json:
        _json(found)
        return
    for one in found:
        amounts = ", ".join(
            f"{what} {'-' if amount is None else format_usd(amount)}"
            for what, amount in (
                ("booked", one.booked_pico_usd),
                ("told", one.told_pico_usd),
                ("billed", one.billed_pico_usd),
            )
        )
        typer.echo(
            f"{one.state.value:<12} {one.day}  {one.account}/{one.model}"
            f"  {one.generation or '-'}  {amounts} USD"
        )


@app.command("proposals", short_help="List proposed adjustments.")
def list_proposals(
    state: Annotated[
        str | None,
        typer.Option("--state", help="proposed, posted or rejected.", show_default=False),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List proposals, newest first."""
    found = ask(_loaded(config), ListProposals(state=state), tuple[Proposal, ...])
    if as_json:
        _json(found)
        return
    for one in found:
        typer.echo(
            f"{one.proposal_id}  {one.period}  {one.kind}  {one.state}"
            f"  {format_usd(one.total_pico_usd)} USD  by {one.proposed_by}: {one.reason}"
        )


@app.command("propose", short_help="Propose adjustments by hand.")
def propose(
    month: MonthOption,
    kind: Annotated[AdjustmentKind, typer.Option("--kind", help="What they are.")],
    reason: Annotated[str, typer.Option("--reason", help="Why, in one sentence.")],
    line: Annotated[
        list[str],
        typer.Option("--line", help="TEAM=USD or TEAM/PROJECT=USD; repeat."),
    ],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Propose adjustments; moves between teams (reattribution, allocation) have to sum to zero."""
    order = Propose(
        actor=actor(),
        period=month_of_option(month),
        kind=kind,
        reason=reason,
        lines=tuple(_line(text) for text in line),
    )
    made = ask(_loaded(config), order, Proposal)
    if as_json:
        _json(made)
    else:
        typer.echo(f"proposal {made.proposal_id} waits for approval")


@app.command("approve", short_help="Approve a proposal and post its adjustments.")
def approve(
    proposal_id: Annotated[int, typer.Argument(help="Number of the proposal.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Approve and post; whoever proposed cannot approve while somebody else could."""
    _decide(proposal_id, config, is_approved=True, as_json=as_json)


@app.command("reject", short_help="Reject a proposal.")
def reject(
    proposal_id: Annotated[int, typer.Argument(help="Number of the proposal.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Reject a proposal; it is kept, and posts nothing."""
    _decide(proposal_id, config, is_approved=False, as_json=as_json)


@app.command("adjustments", short_help="List posted adjustments.")
def list_adjustments(
    month: Annotated[
        str | None, typer.Option("--month", help="Only of this month.", show_default=False)
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """List posted adjustments, by the month that they count in."""
    found = ask(_loaded(config), ListAdjustments(), tuple[Adjustment, ...])
    found = tuple(one for one in found if month in (None, one.period))
    if as_json:
        _json(found)
        return
    for one in found:
        about = f" about {one.original_period}" if one.original_period else ""
        place = one.team + (f"/{one.project}" if one.project else "")
        typer.echo(
            f"{one.adjustment_id}  {one.period}{about}  {one.kind}  {place}"
            f"  {format_usd(one.amount_pico_usd)} USD  approved by {one.approved_by}: {one.reason}"
        )


def check_provider(loaded: LoadedConfig, name: str) -> None:
    """Refuse the name of a provider that is not configured.

    Raises:
        BadParameter: It is not.
    """
    known = loaded.settings.providers
    if name not in known:
        raise typer.BadParameter(f"no provider {name!r}; there are: {', '.join(sorted(known))}")


def rates_of(loaded: LoadedConfig) -> tuple[str | None, str]:
    """The text and the name of the configured rates file; no text and no name without one.

    Raises:
        CliFault: It cannot be read.
    """
    path = Reporting.of(loaded.settings, base_dir=loaded.base_dir).rates_path
    if path is None:
        return None, ""
    return _content(path).decode("utf-8-sig", "replace"), str(path)


def _decide(proposal_id: int, config: Path | None, *, is_approved: bool, as_json: bool) -> None:
    order = Decide(actor=actor(), proposal_id=proposal_id, is_approved=is_approved)
    done = ask(_loaded(config), order, Proposal)
    if as_json:
        _json(done)
        return
    typer.echo(f"proposal {done.proposal_id} is {done.state}")
    if is_approved and done.decided_by == done.proposed_by:
        typer.echo("note: proposer and approver are the same; nobody else can approve", err=True)


def _show(found: ReconciliationRun, *, as_json: bool) -> None:
    if as_json:
        _json(found)
        return
    for text in coverage_lines(found.accounts):
        typer.echo(text)
    for one in found.differences:
        typer.echo(f"  {one.kind:<14} {format_usd(one.amount_pico_usd):>16} USD  {one.sentence}")
    for what, amount in (
        ("billed", found.billed_pico_usd),
        ("booked", found.ledger_pico_usd),
        ("adjusted before", found.adjusted_pico_usd),
        ("differences", sum(one.amount_pico_usd for one in found.differences)),
    ):
        typer.echo(f"{what:<16} {format_usd(amount)} USD")
    if found.proposal_ids:
        numbers = ", ".join(str(number) for number in found.proposal_ids)
        typer.echo(f"proposals {numbers} wait for approval")
    if found.price_proposal_ids:
        numbers = ", ".join(str(number) for number in found.price_proposal_ids)
        typer.echo(f"prices are other than ours: price proposals {numbers}")


def _line(text: str) -> AdjustmentLine:
    place, mark, amount = text.rpartition("=")
    team, _, project = place.partition("/")
    try:
        pico = parse_usd(amount)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}", param_hint="--line") from error
    if not mark or not team:
        raise typer.BadParameter(f"{text!r} is not TEAM=USD", param_hint="--line")
    return AdjustmentLine(amount_pico_usd=pico, team=team, project=project)


def _content(path: Path) -> bytes:
    """A file's bytes.

    Raises:
        CliFault: It is over the bound; what the machine refuses is told by the caller's caller.
    """
    if path.stat().st_size > FILE_BYTES_MAX:
        raise CliFault(f"{path} is over {FILE_BYTES_MAX // 1024**2} MiB; split it by days")
    return path.read_bytes()


def _loaded(config: Path | None) -> LoadedConfig:
    return load_guarded(config, environ=process_environ())


def _json(found: object) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())
