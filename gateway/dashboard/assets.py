"""Style sheets, scripts and browser libraries of the pages, by name and digest.

Pages name an asset with the beginning of its digest in the address, so that browsers may keep it
for ever and never take an old one. Only what is listed here can be asked for; no path is ever made
of an address.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType

from starlette.responses import Response

_PACKAGE = "gateway.dashboard"
_TYPES: Mapping[str, str] = MappingProxyType(
    {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
)
NAMES = (
    "books.css",
    "fareway.css",
    "fareway.js",
    "theme.js",
    "vendor/echarts.common.min.js",
    "vendor/htmx.min.js",
    "vendor/uplot.min.css",
    "vendor/uplot.min.js",
)
KEEP = "public, max-age=31536000, immutable"
_DIGEST_CHARS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Asset:
    """A file that browsers may have.

    Attributes:
        name: Below `static`, with forward slashes.
        digest: Beginning of its SHA-256, in hexadecimal.
        media_type: For the header.
        content: What is sent; kept, so that no request waits for a disk.
    """

    name: str
    digest: str
    media_type: str
    content: bytes


@dataclass(frozen=True, slots=True)
class Assets:
    """Every asset by name."""

    by_name: Mapping[str, Asset]

    def url(self, name: str) -> str:
        """Where a page finds an asset.

        Raises:
            KeyError: There is none of this name.
        """
        return f"/ui/static/{name}?v={self.by_name[name].digest}"

    def response(self, name: str, *, digest: str | None, known: str | None) -> Response:
        """Answer a browser that asks for an asset.

        Args:
            name: As in the address.
            digest: As in the address, None without one.
            known: The entity tag of what the browser has.
        """
        asset = self.by_name.get(name)
        if asset is None:
            return Response(status_code=404)
        tag = f'"{asset.digest}"'
        # An address with another digest belongs to a page of before; it is not kept.
        headers = {"etag": tag, "cache-control": KEEP if digest == asset.digest else "no-cache"}
        if known == tag:
            return Response(status_code=304, headers=headers)
        return Response(asset.content, media_type=asset.media_type, headers=headers)


def load_assets() -> Assets:
    """Read every asset, once for as long as the pages live."""
    found: dict[str, Asset] = {}
    for name in NAMES:
        data = files(_PACKAGE).joinpath("static", *name.split("/")).read_bytes()
        found[name] = Asset(
            name=name,
            digest=hashlib.sha256(data).hexdigest()[:_DIGEST_CHARS],
            media_type=_TYPES[name.rpartition(".")[2]],
            content=data,
        )
    return Assets(MappingProxyType(found))
