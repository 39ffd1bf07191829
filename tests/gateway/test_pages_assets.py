"""Style sheets, scripts and libraries: those of the release, kept by browsers, and nothing else."""

import hashlib
import json
import re
from importlib.resources import files

import pytest

from gateway.dashboard.assets import KEEP, NAMES, load_assets

STATIC = files("gateway.dashboard") / "static"
MANIFEST = json.loads((STATIC / "vendor" / "vendor.json").read_text())
LICENCES = {"0BSD", "Apache-2.0", "MIT"}


def test_every_vendored_file_is_the_one_that_was_taken():
    found = {one.name for one in (STATIC / "vendor").iterdir()} - {"vendor.json"}
    assert found == set(MANIFEST)
    for name, entry in MANIFEST.items():
        data = (STATIC / "vendor" / name).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"], name
        assert entry["licence"] in LICENCES


def test_every_library_comes_with_its_licence():
    texts = {MANIFEST[name]["package"] for name in MANIFEST if name.endswith(".LICENSE.txt")}
    assert texts == {entry["package"] for entry in MANIFEST.values()}


@pytest.mark.parametrize("name", NAMES)
def test_an_asset_is_kept_under_the_address_that_names_its_digest(name):
    assets = load_assets()
    address, _, digest = assets.url(name).partition("?v=")
    assert address == f"/ui/static/{name}"
    answer = assets.response(name, digest=digest, known=None)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == KEEP
    assert hashlib.sha256(answer.body).hexdigest().startswith(digest)
    again = assets.response(name, digest=digest, known=answer.headers["etag"])
    assert (again.status_code, again.body) == (304, b"")


@pytest.mark.parametrize("digest", [None, "", "0123456789abcdef"])
def test_an_address_of_another_release_is_not_kept(digest):
    answer = load_assets().response("fareway.css", digest=digest, known=None)
    assert answer.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "name",
    ["", "nothing.js", "../pages.py", "vendor/../../pages.py", "vendor/vendor.json", "/etc/passwd"],
)
def test_nothing_else_can_be_asked_for(name):
    assert load_assets().response(name, digest=None, known=None).status_code == 404


def test_scripts_of_ours_need_no_exception_from_the_policy():
    for name in ("fareway.js", "theme.js"):
        text = (STATIC / name).read_text()
        assert not re.search(
            r"\beval\b|new Function|innerHTML|document\.write|setAttribute\(.style", text
        )
