"""`fareway policy egress`: every place that is configured is let through, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from gateway.cli import main as cli
from gateway.egress.destinations import Destination, Purpose
from gateway.egress.rules import Format, rules


def place(host: str, port: int, purpose: Purpose = Purpose.PROVIDER) -> Destination:
    return Destination(host=host, port=port, purpose=purpose, setting="providers.p")


LISTED = (
    place("10.0.0.5", 8000),
    place("fd00::5", 8443),
    place("api.example.com", 443),
    place("*.example.net", 8444, Purpose.OPERATOR),
)


def test_nftables_drops_what_is_not_listed() -> None:
    text = rules(LISTED, Format.NFTABLES)
    accepted = re.findall(r"^ +((?:ip6? daddr \S+ )?tcp dport \d+) accept", text, re.MULTILINE)
    assert accepted == [
        "ip daddr 10.0.0.5 tcp dport 8000",
        "ip6 daddr fd00::5 tcp dport 8443",
        "tcp dport 443",
        "tcp dport 8444",
    ]
    assert "hook output priority filter; policy drop;" in text
    assert "# api.example.com is a name: only its port can be enforced here" in text


def test_a_network_policy_lets_out_to_addresses_and_to_ports_of_names() -> None:
    policy = cast("dict[str, Any]", yaml.safe_load(rules(LISTED, Format.NETWORKPOLICY)))
    assert policy["spec"]["policyTypes"] == ["Egress"]
    names, *let_out = cast("list[dict[str, list[dict[str, object]]]]", policy["spec"]["egress"])
    assert {one["port"] for one in names["ports"]} == {53}
    assert [(one["ports"][0]["port"], one.get("to")) for one in let_out] == [
        (8000, [{"ipBlock": {"cidr": "10.0.0.5/32"}}]),
        (8443, [{"ipBlock": {"cidr": "fd00::5/128"}}]),
        (443, None),
        (8444, None),
    ]


def test_squid_knows_the_names() -> None:
    lines = rules(LISTED, Format.SQUID).splitlines()
    hosts = [line for line in lines if "_host_" in line and line.startswith("acl")]
    assert [line.split()[2:] for line in hosts] == [
        ["dst", "10.0.0.5"],
        ["dst", "fd00::5"],
        ["dstdomain", "api.example.com"],
        ["dstdomain", ".example.net"],
    ]
    assert lines[-1] == "http_access deny all"
    assert sum(line.startswith("http_access allow") for line in lines) == len(LISTED)


def test_the_command_writes_rules_and_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fareway.yaml").write_text(
        "providers:\n  own: {kind: openai_compatible, base_url: 'http://10.0.0.5:8000/v1'}\n"
    )
    for form in Format:
        with pytest.raises(SystemExit) as left:
            cli.main(["policy", "egress", "--format", form])
        assert not left.value.code
        assert "10.0.0.5" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["policy", "egress", "--json"])
    told = cast("dict[str, Any]", yaml.safe_load(capsys.readouterr().out))
    assert told["mode"] == "enforce"
    [only] = cast("list[dict[str, object]]", told["destinations"])
    assert (only["host"], only["port"], only["roles"]) == ("10.0.0.5", 8000, ["worker"])
