"""Directories of writers that are gone: mended once, loaded, then removed."""

from __future__ import annotations

import logging
from pathlib import Path

from gateway.ledger import backlog, segment, spool_directory
from gateway.ledger.errors import SpoolLocked
from gateway.ledger.spool_reader import Cursor

_log = logging.getLogger(__name__)


class Adoption:
    """Remembers which directories were mended, so that each is mended once."""

    def __init__(self) -> None:
        self._mended: dict[str, spool_directory.Recovered] = {}

    def adopt(self, directory: Path) -> bytes | None:
        """Mend what a dead writer left; its session, or None while a writer lives."""
        try:
            lock = spool_directory.acquire(directory)
        except SpoolLocked:
            self.forget(directory.name)
            return None
        try:
            recovered = self._mended.get(directory.name)
            if recovered is None or not _is_still_last(directory, recovered):
                recovered = spool_directory.recover(directory)
                self._mended[directory.name] = recovered
                _log.info("adopted the spool %s of a writer that is gone", directory.name)
        finally:
            lock.release()
        return recovered.last_session

    def forget(self, name: str) -> None:
        """Take a directory of that name for one never seen."""
        self._mended.pop(name, None)


def remove_dead(directory: Path, cursor: Cursor) -> bool:
    """Remove a dead writer's directory unless a new writer came or something waits.

    Returns:
        Whether the directory is gone.
    """
    try:
        lock = spool_directory.acquire(directory)
    except SpoolLocked:
        return False
    try:
        if backlog.waiting_bytes(directory, cursor):
            return False
        return spool_directory.remove(directory)
    finally:
        lock.release()


def _is_still_last(directory: Path, recovered: spool_directory.Recovered) -> bool:
    """Whether no writer came and died since a directory was mended."""
    last = max(segment.segment_numbers(directory), default=0)
    header = segment.read_header(segment.segment_path(directory, last)) if last else None
    session = header.session if header else segment.NO_SESSION
    return (last, session) == (recovered.last_number, recovered.last_session)
