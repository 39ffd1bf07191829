"""The `fareway` command: a table of commands whose modules are imported only when they run.

`fareway --help` must be fast, so this module and the table import nothing but Typer. To add a
command, write `gateway/cli/<command>.py` and add its row. A command that cannot do its work raises
`CliFault` or a `SettingsError`: one sentence on standard error and exit status 1; so ends what the
machine refuses (a full disk, a folder that cannot be written). Typer itself answers wrong usage
with 2.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, NoReturn, cast

import typer

from gateway.cli.faults import CliFault
from gateway.process.launch import HeadStart
from gateway.settings.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class LazyCommand:
    """One row of the table.

    Attributes:
        name: What the user types.
        target: `module:attribute` of a function, or of a `typer.Typer` with subcommands.
        help: One sentence for the overview.
    """

    name: str
    target: str
    help: str

    def load(self) -> typer.Typer | Callable[..., None]:
        """Import the command's module."""
        module_name, _, attribute = self.target.partition(":")
        module = importlib.import_module(module_name)
        return cast("typer.Typer | Callable[..., None]", getattr(module, attribute))


COMMANDS: tuple[LazyCommand, ...] = (
    LazyCommand(
        name="init",
        target="gateway.cli.init:init",
        help="Write a commented fareway.yaml to start from.",
    ),
    LazyCommand(
        name="config",
        target="gateway.cli.config:app",
        help="Check, show and describe the configuration.",
    ),
    LazyCommand(
        name="quickstart",
        target="gateway.cli.quickstart:quickstart",
        help="Start everything and show one real request.",
    ),
    LazyCommand(
        name="serve",
        target="gateway.cli.serve:serve",
        help="Run the gateway until it is told to stop.",
    ),
    LazyCommand(
        name="keys",
        target="gateway.cli.keys:app",
        help="Make, list and revoke API keys.",
    ),
    LazyCommand(
        name="budgets",
        target="gateway.cli.budgets:app",
        help="See budgets and set them.",
    ),
    LazyCommand(
        name="users",
        target="gateway.cli.users:app",
        help="Say who can log in, and with which roles.",
    ),
    LazyCommand(
        name="audit",
        target="gateway.cli.audit:app",
        help="Check the audit log.",
    ),
    LazyCommand(
        name="models",
        target="gateway.cli.models:app",
        help="List models and keep their files on this machine.",
    ),
    LazyCommand(
        name="explain",
        target="gateway.cli.explain:explain",
        help="Show where a request would go, why, and at what cost.",
    ),
    LazyCommand(
        name="policy",
        target="gateway.cli.policy:app",
        help="Prove the privacy policy, and work with it.",
    ),
    LazyCommand(
        name="spend",
        target="gateway.cli.spend:app",
        help="Report what was spent.",
    ),
    LazyCommand(
        name="prices",
        target="gateway.cli.prices:app",
        help="See prices that bills imply, and decide.",
    ),
    LazyCommand(
        name="ledger",
        target="gateway.cli.ledger:app",
        help="Check the ledger.",
    ),
    LazyCommand(
        name="db",
        target="gateway.cli.db:app",
        help="Change the schema of the ledger's database.",
    ),
    LazyCommand(
        name="bench",
        target="gateway.cli.bench:app",
        help="Measure this machine and Fareway on it.",
    ),
    LazyCommand(
        name="doctor",
        target="gateway.cli.doctor:doctor",
        help="Check this machine and this installation.",
    ),
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"fareway {version('fareway')}")
        raise typer.Exit


def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version.",
            show_default=False,
        ),
    ] = False,
) -> None:
    """Provider gateway and cost router."""


def _never_run() -> None:
    raise AssertionError("a row was run without being loaded")


def build(arguments: Sequence[str], *, loads_all: bool = False) -> typer.Typer:
    """Make the application, with only the command that `arguments` name really loaded.

    Args:
        arguments: The command line without the program's name.
        loads_all: Whether to load every command, for what looks at all of them.
    """
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    for row in COMMANDS:
        loaded = row.load() if loads_all or row.name == chosen else _never_run
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=row.name, help=row.help, no_args_is_help=True)
        else:
            app.command(row.name, help=row.help)(loaded)
    return app


def main(arguments: Sequence[str] | None = None, *, head_start: HeadStart | None = None) -> None:
    """Run the command line and leave with its exit status.

    Args:
        arguments: Without the program's name; those of the process when None.
        head_start: Children that are under way for `serve`; whoever started them ends the rest.

    Raises:
        SystemExit: Always: 0 ok, 1 fault, 2 usage.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        build(given)(args=given, prog_name="fareway", obj=head_start)
    except (CliFault, SettingsError) as error:
        _fail(str(error), error)
    except OSError as error:
        _fail(_refused(error), error)
    except BaseExceptionGroup as group:
        # What task groups make of the two above.
        refused, others = group.split(OSError)
        if refused is None or others is not None:
            raise
        error = next(_leaves(refused))
        _fail(_refused(error), error)


def _fail(sentence: str, error: BaseException) -> NoReturn:
    # Not through Typer: standard output may be what failed, and is not flushed again at the end.
    sys.stderr.write(f"{sentence}\n")
    sys.stderr.flush()
    raise SystemExit(1) from error


def _refused(error: OSError) -> str:
    """What the machine refused, as a sentence."""
    reason = error.strerror or str(error) or type(error).__name__
    path = cast("str | bytes | None", error.filename)
    return f"{path}: {reason}" if path else f"this machine refuses: {reason}"


def _leaves(group: BaseExceptionGroup[OSError]) -> Iterator[OSError]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
