"""Log lines: one per event, to standard error, without content and without secrets.

Every process writes the same form. As JSON a line is one object in ASCII, so that nothing that came
from outside can begin a line of its own or steer a terminal; a traceback is one member of it. As
text, for people, control characters are escaped and only a traceback has several lines, indented.

Where content passes, the words of an exception that is not ours may quote it (`invalid literal for
int() with base 10: '...'`), so only its type and its place are told.
"""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import cast

LOG_FORMATS = ("json", "text")
_FIELDS = "fields"
_OURS = ("gateway.", "providers.", "pricing.", "local_engine.")

_NOISY = ("aiohttp", "aiosqlite", "alembic", "asyncio", "httpx", "opentelemetry", "uvicorn")


def set_up_logging(
    process: str,
    *,
    level: int = logging.INFO,
    log_format: str = "json",
    handles_content: bool = False,
) -> None:
    """Send this process's log lines to standard error; may be called again to change the form.

    Args:
        process: Named in every line.
        level: Lines below it are dropped.
        log_format: One of `LOG_FORMATS`.
        handles_content: Whether prompts and answers pass through this process.
    """
    make = TextLines if log_format == "text" else JsonLines
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(logging.StreamHandler())
    for handler in root.handlers:
        handler.setFormatter(make(process, handles_content=handles_content))
    root.setLevel(level)
    # Libraries speak of connections and requests on these levels, sometimes with URLs.
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)


def log_fields(
    logger: logging.Logger, message: str, fields: Mapping[str, object], *, level: int = logging.INFO
) -> None:
    """Write a line with members of its own.

    Args:
        logger: Named in the line.
        message: What happened, the same words each time.
        fields: Further members; text, numbers, truths and None.
        level: How grave it is.
    """
    logger.log(level, message, extra={_FIELDS: fields})


class _Lines(logging.Formatter):
    """What both forms share.

    Args:
        process: Named in every line.
        handles_content: Whether the words of others' exceptions are left out.
    """

    def __init__(self, process: str, *, handles_content: bool) -> None:
        super().__init__()
        self.process = process
        self.handles_content = handles_content

    def message_of(self, record: logging.LogRecord) -> str:
        """The record's message; where content passes, an event loop's without its arguments."""
        message = record.getMessage()
        if self.handles_content and record.name == "asyncio":
            # `Exception in callback f(b'...')`, then representations of futures with exceptions.
            return message.partition("\n")[0].partition(" callback ")[0]
        return message

    def traceback_of(self, record: logging.LogRecord) -> str:
        """The record's exception with its causes, empty when it has none."""
        if record.exc_info is None or record.exc_info[0] is None:
            return ""
        return _told(record.exc_info[1], with_words=not self.handles_content)


class JsonLines(_Lines):
    """One JSON object a line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        line: dict[str, object] = {
            "time": _instant(record),
            "level": record.levelname.lower(),
            "process": self.process,
            "pid": record.process,
            "logger": record.name,
            "message": self.message_of(record),
        }
        told = self.traceback_of(record)
        if told:
            line["traceback"] = told
        for name, value in _fields(record).items():
            line.setdefault(name, value)  # never in the place of what every line has
        return json.dumps(line, default=str)


class TextLines(_Lines):
    """A line for people; no control character of a message gets through."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        words = [self.message_of(record), *(f"{k}={v}" for k, v in _fields(record).items())]
        head = f"{_instant(record)} {self.process} {record.levelname} {record.name}: "
        lines = [head + _printable(" ".join(words))]
        lines += ["    " + _printable(line) for line in self.traceback_of(record).splitlines()]
        return "\n".join(lines)


def _instant(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    return cast("Mapping[str, object]", record.__dict__.get(_FIELDS, {}))


def _printable(text: str) -> str:
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )


def _told(error: BaseException | None, *, with_words: bool) -> str:
    """A traceback as Python prints it, the words of others' exceptions left out where asked."""
    if error is None:
        return ""
    if with_words:
        return "".join(traceback.format_exception(error)).rstrip("\n")
    return "\n\nwhich came from:\n\n".join(_place_and_name(one) for one in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        context = None if current.__suppress_context__ else current.__context__
        current = current.__cause__ or context


def _place_and_name(error: BaseException) -> str:
    kind = type(error)
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    if isinstance(error, OSError):
        name = f"{name}: [errno {error.errno}] {error.strerror}"
    elif kind.__module__.startswith(_OURS):
        name = f"{name}: {error}"
    frames = "".join(traceback.format_tb(error.__traceback__))
    told = f"Traceback (most recent call last):\n{frames}{name}"
    if isinstance(error, BaseExceptionGroup):
        for member in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            told += "\n\none of it:\n\n" + _told(member, with_words=False)
    return told
