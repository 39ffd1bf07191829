"""Bring the dashboard's browser libraries into the tree, with versions, licences and digests.

Run at release time only, with `npm` on the PATH: it downloads the packages of `PACKAGES` in exactly
those versions, copies the named files to `gateway/dashboard/static/vendor`, and writes down where
each came from. Nothing is built, and nothing is fetched when Fareway is installed or runs; a test
compares every file with its digest.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

VENDOR = Path(__file__).resolve().parents[1] / "gateway" / "dashboard" / "static" / "vendor"
MANIFEST = "vendor.json"


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package of the npm registry.

    Attributes:
        name: As `npm` knows it.
        version: Exactly this one.
        licence: Its SPDX identifier.
        said: What its `package.json` says instead of the identifier, empty where it says that.
        files: Where each file of ours comes from, by our name for it.
    """

    name: str
    version: str
    licence: str
    said: str = ""
    files: dict[str, str]


PACKAGES = (
    Package(
        name="echarts",
        version="6.1.0",
        licence="Apache-2.0",
        files={
            "echarts.common.min.js": "dist/echarts.common.min.js",
            "echarts.LICENSE.txt": "LICENSE",
            "echarts.NOTICE.txt": "NOTICE",
        },
    ),
    Package(
        name="htmx.org",
        version="4.0.1",
        licence="0BSD",
        said="BSD-0-Clause",
        files={"htmx.min.js": "dist/htmx.min.js", "htmx.LICENSE.txt": "LICENSE"},
    ),
    Package(
        name="uplot",
        version="1.6.32",
        licence="MIT",
        files={
            "uplot.min.js": "dist/uPlot.iife.min.js",
            "uplot.min.css": "dist/uPlot.min.css",
            "uplot.LICENSE.txt": "LICENSE",
        },
    ),
)


def main() -> int:
    """Fetch, copy, write the manifest."""
    npm = shutil.which("npm")
    if npm is None:
        sys.exit("vendor_assets: npm is needed, and only here; the product runs without it")
    VENDOR.mkdir(parents=True, exist_ok=True)
    entries: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        wanted = [f"{one.name}@{one.version}" for one in PACKAGES]
        install = [npm, "install", "--ignore-scripts", "--no-save", "--no-audit", "--no-fund"]
        subprocess.run([*install, "--prefix", folder, *wanted], check=True)
        for package in PACKAGES:
            source = Path(folder) / "node_modules" / package.name
            said = json.loads((source / "package.json").read_text())
            licence = package.said or package.licence
            if (said["version"], said["license"]) != (package.version, licence):
                sys.exit(
                    f"vendor_assets: {package.name} is {said['version']} under {said['license']}"
                )
            for ours, theirs in package.files.items():
                data = (source / theirs).read_bytes()
                (VENDOR / ours).write_bytes(data)
                entries[ours] = {
                    "package": package.name,
                    "version": package.version,
                    "licence": package.licence,
                    "file": theirs,
                    "sha256": hashlib.sha256(data).hexdigest(),
                }
    (VENDOR / MANIFEST).write_text(json.dumps(entries, indent=2, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
