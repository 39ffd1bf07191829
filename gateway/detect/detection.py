"""What detectors find in one request, and the tags that this comes to.

They may only add. Whatever keeps them from looking to the end, an error, the time or a bound, adds
the tags of `on_error`: not to know must not mean less than to know.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from gateway.detect.budget import Budget
from gateway.detect.custom import CustomDetector, CustomScanner
from gateway.detect.errors import OutOfTime, Unfinished
from gateway.detect.look import Finding, Look
from gateway.detect.opaque import opaque_kinds
from gateway.detect.published import PUBLISHED
from gateway.detect.scanner import Scanner

logger = logging.getLogger(__name__)

HERE_BYTES_MAX = 32 * 1024
"""Longest body that is looked at on the event loop; what is longer is looked at on a thread."""

HERE_S_MAX = 0.003
"""Longest time on the event loop (G8 allows 5 ms); what takes longer begins anew on a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detected:
    """What was found in a request.

    Attributes:
        findings: In the order of the body; up to `look.FINDINGS_MAX`.
        counts: Different values per detector.
        opaque: Kinds of parts that cannot be read.
        fault: Why it was not looked through to its end; empty when it was.
        sources: Per tag that all this comes to, what it comes from.
        tags: Those that are added: all of them with `enforce`, none with `observe`.
    """

    findings: tuple[Finding, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    opaque: tuple[str, ...] = ()
    fault: str = ""
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    tags: frozenset[str] = frozenset()


NOTHING = Detected()
"""What is found in nearly every request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What is to be done about findings.

    Attributes:
        enforces: Whether tags are added; else they are only counted.
        tags: Tags per detector, custom ones included.
        min_counts: How many different values a detector must find, where it is more than one.
        opaque: Tags per kind of part that cannot be read.
        on_error: Tags of what could not be looked through.
        allowed: Values that are nobody's, bare (see `published.bare`).
        timeout_s: Longest processor time for one request.
        custom: The operator's own detectors.
    """

    enforces: bool = False
    tags: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    min_counts: Mapping[str, int] = field(default_factory=dict[str, int])
    opaque: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    on_error: frozenset[str] = frozenset()
    allowed: frozenset[bytes] = PUBLISHED
    timeout_s: float = 0.015
    custom: tuple[CustomDetector, ...] = ()


class Detection:
    """Detectors with orders; immutable, shared by all requests and threads.

    Args:
        orders: What is to be done about findings.
        scanner: The built-in detectors.
        cpu_s: Processor time of the calling thread, in seconds.

    Raises:
        BadPattern: A custom detector's pattern cannot be used.
    """

    __slots__ = ("_cpu_s", "_custom", "_scanner", "orders")

    def __init__(
        self,
        orders: Orders,
        *,
        scanner: Scanner | None = None,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self.orders = orders
        self._scanner = scanner or Scanner()
        self._custom = CustomScanner(orders.custom) if orders.custom else None
        self._cpu_s = cpu_s

    def look_here(self, fields: Mapping[str, msgspec.Raw], *, has_media: bool) -> Detected | None:
        """Look at a request on the event loop; None where that takes too long there.

        Args:
            fields: Its top-level members, as they are sent.
            has_media: Whether a part of it is something other than text.
        """
        if sum(map(len, fields.values())) > HERE_BYTES_MAX:
            return None
        limit_s = min(HERE_S_MAX, self.orders.timeout_s)
        detected = self._look(fields, has_media=has_media, limit_s=limit_s)
        is_late = detected.fault == OutOfTime.reason and limit_s < self.orders.timeout_s
        return None if is_late else detected

    def look(self, fields: Mapping[str, msgspec.Raw], *, has_media: bool) -> Detected:
        """Look at a request, however large; for a thread.

        Args:
            fields: Its top-level members, as they are sent.
            has_media: Whether a part of it is something other than text.
        """
        return self._look(fields, has_media=has_media, limit_s=self.orders.timeout_s)

    def _look(
        self, fields: Mapping[str, msgspec.Raw], *, has_media: bool, limit_s: float
    ) -> Detected:
        look = Look(
            scanner=self._scanner,
            custom=self._custom,
            allowed=self.orders.allowed,
            budget=Budget(self._cpu_s, limit_s),
        )
        fault = ""
        opaque: tuple[str, ...] = ()
        try:
            body = msgspec.json.encode(fields)
            if has_media:
                opaque = opaque_kinds(fields)
            look.at_body(body)
        except Unfinished as error:
            fault = error.reason
        except Exception as error:  # noqa: BLE001  # whatever it is, it must not let a request pass
            # Neither its message nor a traceback's values: they may hold what was looked at.
            logger.error("a detector failed with %s", type(error).__name__)  # noqa: TRY400
            fault = Unfinished.reason
        if not fault and not opaque and not look.values:
            return NOTHING
        return self._judge(look, opaque, fault)

    def _judge(self, look: Look, opaque: tuple[str, ...], fault: str) -> Detected:
        """From what was found to tags."""
        orders = self.orders
        counts = {detector: len(values) for detector, values in look.values.items()}
        findings = look.findings()
        sources: dict[str, str] = {}
        for detector, count in counts.items():
            if count >= orders.min_counts.get(detector, 1):
                source = _source(detector, findings)
                sources |= dict.fromkeys(orders.tags.get(detector, ()), source)
        for kind in opaque:
            for tag in orders.opaque.get(kind, ()):
                sources.setdefault(tag, f"{kind} parts cannot be read")
        if fault:
            for tag in orders.on_error:
                sources.setdefault(tag, f"detectors did not finish ({fault})")
        return Detected(
            findings=findings,
            counts=counts,
            opaque=opaque,
            fault=fault,
            sources=sources,
            tags=frozenset(sources) if orders.enforces else frozenset(),
        )


def _source(detector: str, findings: Iterable[Finding]) -> str:
    """Detector and first place, as a phrase."""
    first = next((one for one in findings if one.detector == detector), None)
    if first is None:  # beyond the places that are named
        return detector
    what = detector if first.kind == detector else f"{detector} ({first.kind})"
    return f"{what} at {first.path}"
