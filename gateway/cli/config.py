"""`fareway config check|schema|show`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

import typer

from gateway.cli.configured import load_guarded
from gateway.cli.options import ConfigOption, JsonOption
from gateway.settings.environment import process_environ
from gateway.settings.errors import ConfigError, Problem
from gateway.settings.extras import missing_extras
from gateway.settings.loader import LoadedConfig
from gateway.settings.unbuilt import unbuilt

app = typer.Typer(help="Check, show and describe the configuration.", rich_markup_mode=None)


def _load(config: ConfigOption) -> LoadedConfig:
    return load_guarded(config, environ=process_environ(), today=datetime.now(UTC).date())


@app.command("check")
def check(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Check the configuration and report every problem with its line."""
    try:
        loaded = _load(config)
    except ConfigError as error:
        if not as_json:
            raise
        _print_json({"ok": False, "problems": _plain(error.problems)})
        raise typer.Exit(1) from error
    pending = unbuilt(loaded)
    missing = missing_extras(loaded)
    if as_json:
        _print_json(
            {
                "ok": True,
                "files": [str(path) for path in loaded.files],
                "digest": loaded.digest,
                "warnings": _plain(loaded.warnings),
                "unbuilt": _plain(pending),
                "missing": _plain(missing),
            }
        )
        return
    for warning in loaded.warnings:
        typer.echo(f"warning: {warning}", err=True)
    for problem in (*pending, *missing):
        typer.echo(f"note: {problem}", err=True)
    settings = loaded.settings
    name = str(loaded.files[0]) if loaded.files else "built-in defaults"
    typer.echo(
        f"{name}: ok, {len(settings.providers)} providers, {len(settings.models)} models, "
        f"{len(settings.teams)} teams, digest {loaded.digest[:12]}"
    )
    if pending:
        typer.echo(f"`fareway serve` will refuse {len(pending)} settings that are not built yet")


@app.command("show", short_help="Show the configuration with every default.")
def show(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the configuration with every default filled in; secrets are never part of it."""
    from gateway.settings.redaction import shown

    loaded = _load(config)
    if as_json:
        _print_json(shown(loaded.settings))
        return
    import yaml

    text: str = yaml.safe_dump(shown(loaded.settings), allow_unicode=True, sort_keys=False)
    typer.echo(text, nl=False)


@app.command("schema")
def schema() -> None:
    """Print the JSON Schema of fareway.yaml, for editors."""
    from gateway.settings.json_schema import config_schema

    _print_json(config_schema())


def _plain(problems: Sequence[Problem]) -> list[dict[str, object]]:
    return [asdict(problem) for problem in problems]


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
