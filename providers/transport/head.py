"""The bytes of a request's head."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping

from yarl import URL

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS = frozenset({"connection", "content-length", "host", "transfer-encoding", "upgrade"})


class RequestHead:
    """What the heads of all requests to one URL have in common."""

    def __init__(
        self,
        url: URL,
        *,
        proxy_credentials: str | None,
        is_absolute: bool,
        method: str = "POST",
    ) -> None:
        """Write the first lines.

        Args:
            url: Where to.
            proxy_credentials: `user:password` for a proxy that reads the head, None without one.
            is_absolute: Whether such a proxy has to be told the whole URL.
            method: Of the requests.
        """
        target = str(url.with_fragment(None)) if is_absolute else url.raw_path_qs
        lines = [f"{method} {target} HTTP/1.1", f"host: {url.host_port_subcomponent}"]
        if proxy_credentials is not None:
            lines.append(f"proxy-authorization: {basic_credentials(proxy_credentials)}")
        self._start = "\r\n".join([*lines, "content-length: "]).encode()

    def encode(self, headers: Mapping[str, str] | bytes, size_bytes: int) -> bytes:
        """Write the head of one request.

        Args:
            headers: Sent as they are; what frames the request is ours to say. Lines are what
                `header_lines` wrote.
            size_bytes: The body's length.

        Raises:
            ValueError: A header's name or value cannot be written.
        """
        lines = headers if isinstance(headers, bytes) else header_lines(headers)
        return b"%b%d\r\n%b\r\n" % (self._start, size_bytes, lines)


def header_lines(headers: Mapping[str, str]) -> bytes:
    """Check and write headers, each with its line end; once for those of every request.

    Raises:
        ValueError: A header's name or value cannot be written, or is not for a caller to set.
    """
    for name in headers:
        if _TOKEN.fullmatch(name) is None:
            raise ValueError("a header's name is made of letters, digits and -")
        if name.lower() in _OURS:
            raise ValueError(f"the header {name.lower()} is not for a caller to set")
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    # One look at all values: each header brought one line break, and nothing else may.
    count = len(headers)
    if text.count("\n") != count or text.count("\r") != count or "\0" in text:
        raise ValueError("a header's value must not contain a line break")
    return text.encode()


def origin_of(text: str) -> URL:
    """The scheme, host and port of an address.

    Raises:
        ValueError: It is not absolute http or https, or carries credentials.
    """
    url = URL(text)
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError("base_url must be an absolute http or https address")
    if url.user is not None or url.password is not None:
        raise ValueError("base_url must not contain credentials; use api_key_env")
    return url.origin()


def place_of(url: URL) -> str:
    """An address's scheme, host and port, all written out, as permits name places."""
    host = (url.raw_host or "").rstrip(".")
    shown = f"[{host}]" if ":" in host else host
    return f"{url.scheme}://{shown}:{url.port}"


def basic_credentials(credentials: str) -> str:
    """The value of a header that shows `user:password`."""
    return "Basic " + b64encode(credentials.encode()).decode()
