"""The engine process's log lines, in the form of the gateway's: a JSON object or a line of text.

What passes here is content, so of an exception only its type and its place are told, and nothing of
a message can begin a line of its own.
"""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime


def set_up_logging(process: str, *, level: int, log_format: str) -> None:
    """Send this process's log lines to standard error; may be called again to change the form.

    Args:
        process: Named in every line.
        level: Lines below it are dropped.
        log_format: `json` or `text`.
    """
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(logging.StreamHandler())
    for handler in root.handlers:
        handler.setFormatter(EngineLines(process, is_json=log_format == "json"))
    root.setLevel(level)


class EngineLines(logging.Formatter):
    """One line per event.

    Args:
        process: Named in every line.
        is_json: Whether a line is a JSON object in ASCII.
    """

    def __init__(self, process: str, *, is_json: bool) -> None:
        super().__init__()
        self._process = process
        self._is_json = is_json

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {
            "time": at,
            "level": record.levelname.lower(),
            "process": self._process,
            "pid": record.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        place = _place(record)
        if place:
            line["traceback"] = place
        if self._is_json:
            return json.dumps(line)
        text = " ".join(f"{line['message']}{place and chr(10) + place}".splitlines())
        shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
        return f"{at} {self._process} {record.levelname} {record.name}: {shown}"


def _place(record: logging.LogRecord) -> str:
    if record.exc_info is None or record.exc_info[1] is None:
        return ""
    error = record.exc_info[1]
    return "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__
