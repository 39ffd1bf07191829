"""`fareway policy`: prove the privacy policy, explain it, write what it assumes of the network."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.configured import load_guarded
from gateway.cli.faults import CliFault
from gateway.cli.options import ConfigOption, JsonOption
from gateway.cli.policy_egress import egress
from gateway.cli.policy_expectations import hold_expectations
from gateway.cli.policy_explain import explain
from gateway.cli.policy_instant import instant_of
from gateway.policy_certificate import certificate_of, write_certificate
from gateway.policy_proof import prove_config
from gateway.privacy.certificate import Certificate
from gateway.privacy.errors import PolicyError
from gateway.privacy.proof import Proof
from gateway.settings.environment import process_environ
from gateway.settings.secrets import Label, load_master_keys

app = typer.Typer(help="Prove the privacy policy, and work with it.", rich_markup_mode=None)


@app.callback()
def policy() -> None:
    """Prove the privacy policy, and work with it."""


@app.command("prove", short_help="Look at every cell of the policy.")
def prove(
    at: Annotated[
        str,
        typer.Option(
            metavar="DATE", help="Day or instant to prove at; now unless said.", show_default=False
        ),
    ] = "",
    certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a signed certificate.", show_default=False),
    ] = None,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Hold the gateway against an independent oracle, for every set of tags, name, road and expiry.

    Exit status 1 tells that there is a counter-example.
    """
    instant = instant_of(at)
    loaded = load_guarded(config, environ=process_environ(), today=instant.date())
    try:
        proof = prove_config(loaded, at=instant)
    except PolicyError as error:
        raise CliFault(str(error)) from error
    issued = None
    if certificate is not None and proof.holds:
        master = load_master_keys(
            loaded, environ=process_environ(), random_bytes=secrets.token_bytes
        )
        issued = certificate_of(proof, at=instant)
        write_certificate(certificate, issued.signed(master.derive(Label.CERTIFICATE)))
    if as_json:
        digest = None if issued is None else issued.digest
        typer.echo(json.dumps({**proof.to_json(), "certificate_digest": digest}, indent=2))
    else:
        typer.echo("\n".join(_lines(proof, issued)))
    if not proof.holds:
        raise typer.Exit(1)


def _lines(proof: Proof, issued: Certificate | None) -> Iterator[str]:
    for one in proof.counter_examples:
        yield f"wrong: {one}"
    for one in proof.warnings:
        yield f"warning: {one}"
    expiries = len(proof.instants) - 1
    said = f"{proof.cells} cells, {proof.tag_sets} sets of tags, {expiries} expiries"
    if not proof.holds:
        yield f"the policy does not hold ({said})"
        return
    partly = "" if proof.is_complete else "; too many tags to walk all sets of them"
    yield f"the policy holds: {said}{partly}; digest {proof.policy_digest[:12]}"
    if issued is not None:
        yield f"certificate {issued.digest[:12]}"


app.command("egress", short_help="Rules for the network: where the service connects to.")(egress)
app.command("explain", short_help="What the policy makes of a request.")(explain)
app.command("test", short_help="Hold expectations against the policy.")(hold_expectations)
