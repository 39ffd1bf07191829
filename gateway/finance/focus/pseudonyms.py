"""Names that may belong to a person, replaced by keyed pseudonyms.

Billing data is kept for years; whoever reads it needs to tell keys and tag values apart, not to
know whose they are. The same value has the same pseudonym in every export of one installation, and
without the master key nobody can try values against it. Values of the cost tags that the
configuration declares (`finance.cost_tags`) are dimensions of reports and stay as they are.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence

from gateway.finance.focus.order import NameForm

_PREFIX = "p_"
_DIGEST_BYTES = 15
"""120 bits, 24 characters: no two values of a company meet."""
_CACHED_MAX = 50_000


class Names:
    """Writes names in one form.

    Args:
        form: Plain or as pseudonyms.
        key: What pseudonyms are derived with.
        declared_tags: Cost tags whose values are never replaced.
    """

    def __init__(self, form: NameForm, *, key: bytes, declared_tags: Sequence[str] = ()) -> None:
        self._is_plain = form is NameForm.PLAIN
        self._key = key
        self._declared = frozenset(declared_tags)
        self._known: dict[tuple[str, str], str] = {}

    def key_id(self, key_id: str) -> str:
        """A key's public id, or its pseudonym; empty stays empty."""
        return key_id if self._is_plain or not key_id else self._pseudonym("key", key_id)

    def tag_value(self, tag: str, value: str) -> str:
        """A cost tag's value, or its pseudonym; empty stays empty."""
        if self._is_plain or tag in self._declared or not value:
            return value
        return self._pseudonym(f"tag:{tag}", value)

    def _pseudonym(self, kind: str, value: str) -> str:
        known = self._known.get((kind, value))
        if known is None:
            if len(self._known) >= _CACHED_MAX:  # clients choose the values
                self._known.clear()
            text = f"{kind}\0{value}".encode(errors="surrogatepass")
            digest = hmac.digest(self._key, text, "sha256")[:_DIGEST_BYTES]
            known = _PREFIX + base64.b32encode(digest).decode("ascii").lower()
            self._known[kind, value] = known
        return known
