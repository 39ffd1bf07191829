"""What a proof of the privacy policy costs, in processor time.

    .venv/bin/python -m bench.bench_policy [--json FILE]

Ten tags, a hundred models with an alias each, three hundred deployments that are claimed about in
thirty ways, with five expiries: what the prover has to walk at a start. Beside it the time of the
oracle alone over the same number of sets of tags and deployments, at one instant and without the
prover's structure, from a sample.
"""

from __future__ import annotations

import argparse
import json
import time
from datetime import UTC, datetime
from pathlib import Path

from bench.gateway.provenance import heading
from gateway.fleet import build_policy
from gateway.policy_proof import prove_policy
from gateway.privacy.oracle import is_allowed
from gateway.settings.loader import load_text

NOW = datetime(2026, 11, 30, tzinfo=UTC)
MODELS, DEPLOYMENTS, KINDS, TAGS = 100, 300, 30, 10
SAMPLE = 16
"""Of every so many sets of tags the oracle is asked about one."""


class _Arguments(argparse.Namespace):
    json: Path | None


def fleet() -> str:
    """A configuration of the size of a large company's."""
    providers: dict[str, object] = {
        f"p{kind}": {
            "kind": "openai_compatible",
            "base_url": f"http://10.0.0.{kind + 1}:8000/v1",
            "trust": [
                *(
                    {"attribute": f"a{place}", "evidence": "inventory"}
                    for place in range(TAGS)
                    if kind >> (place % 5) & 1
                ),
                {
                    "attribute": "contract",
                    "evidence": "inventory",
                    "expires": f"2027-0{kind % 5 + 1}-01",
                },
            ],
        }
        for kind in range(KINDS)
    }
    models = {
        f"m{number}": {
            "aliases": [f"alias-{number}"],
            "deployments": [
                f"p{(number * 3 + each) % KINDS}/d{number * 3 + each}"
                for each in range(DEPLOYMENTS // MODELS)
            ],
        }
        for number in range(MODELS)
    }
    return json.dumps(
        {
            "providers": providers,
            "models": models,
            "teams": {f"team-{place}": {"tags": [f"t{place}"]} for place in range(TAGS)},
            "privacy": {"tags": {f"t{place}": {"require": [f"a{place}"]} for place in range(TAGS)}},
        }
    )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(namespace=_Arguments())
    settings = load_text(fleet(), environ={}, base_dir=Path()).settings
    policy = build_policy(settings)
    began = time.process_time()
    proof = prove_policy(settings, policy, at=NOW)
    prover_s = time.process_time() - began
    assert proof.holds, proof.counter_examples
    assert proof.is_complete
    source = policy.source
    names = sorted(source.tags)
    began = time.process_time()
    for number in range(0, 1 << TAGS, SAMPLE):
        tags = [name for place, name in enumerate(names) if number >> place & 1]
        for deployment in source.deployments:
            is_allowed(source, tags, deployment, NOW)
    oracle_s = (time.process_time() - began) * SAMPLE
    figures = {
        "tags": TAGS,
        "models": len(settings.models),
        "deployments": len(source.deployments),
        "instants": len(proof.instants),
        "cells": proof.cells,
        "prover_s": round(prover_s, 3),
        "bare_oracle_one_instant_s": round(oracle_s, 3),
    }
    for name, value in figures.items():
        print(f"{name}: {value}")
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps({**heading("policy"), **figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
