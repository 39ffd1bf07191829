"""The mapping of a CSV file out of a form: which column means what. Pure.

The mapping is the same text that `fareway spend reconcile import --mapping` takes, so what was made
here can be kept as a file for the next month.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from gateway.dashboard.books.frame import FieldFaults

COLUMNS: Mapping[str, str] = {
    "day": "Day of charge",
    "model": "Model",
    "meter": "Meter",
    "units": "Units",
    "amount": "Amount",
    "currency": "Currency",
    "tier": "Service tier",
    "kind": "Kind of line",
    "description": "Description",
    "number": "Invoice number",
    "issued_on": "Invoice day",
}
"""What a column can mean, and how it is called for people."""
METERS = ("input", "output", "cache_read", "cache_write", "reasoning")
KINDS = ("usage", "tax", "credit", "rounding")
_CURRENCY = re.compile(r"[A-Z]{3}", re.ASCII)
_UNITS_MAX = 10**9


def mapping_of(form: Mapping[str, str]) -> str | None:
    """The text of a mapping; None where the form says nothing of one.

    Args:
        form: As it was filled in; the text of a mapping file wins over chosen columns.

    Raises:
        FieldFaults: Something of it cannot be meant; all of it is told.
    """
    text = form.get("mapping", "").strip()
    if text:
        return text
    columns = {name: column for name in COLUMNS if (column := form.get(f"column-{name}", ""))}
    if not columns:
        return None
    faults: dict[str, str] = {}
    if "day" not in columns:
        faults["column-day"] = "say which column holds the day"
    if "amount" not in columns and "units" not in columns:
        faults["column-amount"] = "choose a column of amounts, of units, or both"
    document: dict[str, object] = {"columns": columns}
    for name in ("day_format", "zone", "delimiter", "encoding"):
        if value := form.get(name, "").strip():
            document[name] = value
    if form.get("decimal") == "comma":
        document["decimal"] = "comma"
    if form.get("credits") == "positive":
        document["credits"] = "positive"
    currency = form.get("currency", "").strip().upper()
    if currency and not _CURRENCY.fullmatch(currency):
        faults["currency"] = "must be three letters such as USD"
    elif currency and "currency" not in columns:
        document["currency"] = currency
    _units_per(form, document, faults)
    _words(form, document, faults)
    if faults:
        raise FieldFaults(faults)
    return as_yaml(document)


def as_yaml(document: Mapping[str, object]) -> str:
    """A mapping as a mapping file has it: a key a line, its text in quotes."""
    lines: list[str] = []
    for name, value in document.items():
        if isinstance(value, dict):
            lines.append(f"{name}:")
            lines += [f"  {_quoted(key)}: {_quoted(one)}" for key, one in value.items()]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        else:
            lines.append(f"{name}: {_quoted(value)}")
    return "\n".join(lines) + "\n"


def _quoted(value: object) -> str:
    """JSON is YAML, and quotes what could be read as something else."""
    return json.dumps(value, ensure_ascii=False)


def _units_per(
    form: Mapping[str, str], document: dict[str, object], faults: dict[str, str]
) -> None:
    text = form.get("units_per", "").strip()
    if not text:
        return
    is_number = text.isascii() and text.isdigit() and 1 <= int(text[:12]) <= _UNITS_MAX
    if is_number and len(text) <= len(str(_UNITS_MAX)):
        document["units_per"] = int(text)
    else:
        faults["units_per"] = f"must be a whole number from 1 to {_UNITS_MAX}"


def _words(form: Mapping[str, str], document: dict[str, object], faults: dict[str, str]) -> None:
    """Words of the file and what they mean, one pair a line."""
    for field, known in (("meters", METERS), ("kinds", KINDS)):
        found: dict[str, str] = {}
        for line in form.get(field, "").splitlines():
            if not line.strip():
                continue
            word, mark, meaning = (part.strip() for part in line.rpartition("="))
            if not mark or not word or (field == "kinds" and meaning not in known):
                faults[field] = f"{line.strip()[:60]!r} is not WORD = {' | '.join(known)}"
            else:
                found[word] = meaning
        if found:
            document[field] = found
    skipped: dict[str, list[str]] = {}
    for line in form.get("skip", "").splitlines():
        if not line.strip():
            continue
        column, mark, word = (part.strip() for part in line.partition("="))
        if not mark or not column:
            faults["skip"] = f"{line.strip()[:60]!r} is not COLUMN = WORD"
        else:
            skipped.setdefault(column, []).append(word)
    if skipped:
        document["skip"] = skipped
