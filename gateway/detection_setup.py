"""From section `privacy.detect` to detectors: what they look for and what that comes to."""

from __future__ import annotations

from gateway.detect.custom import CustomDetector
from gateway.detect.detection import Detection, Orders
from gateway.detect.published import PUBLISHED, bare
from gateway.settings.detect import DETECTORS, DetectSettings


def build_detection(detect: DetectSettings | None) -> Detection:
    """Detectors for a worker; without the section they observe and count, nothing more."""
    return Detection(Orders() if detect is None else orders_of(detect))


def orders_of(detect: DetectSettings) -> Orders:
    """What is to be done about findings."""
    tags = {name: frozenset(detect.tags_of(name)) for name in DETECTORS}
    tags |= {one.name: frozenset(one.tags) for one in detect.custom}
    opaque = {kind: frozenset(detect.opaque_tags(kind)) for kind in ("image", "audio", "file")}
    # Not to know must not mean less than to know: whatever might have been added, is.
    might_add = frozenset[str]().union(*tags.values(), *opaque.values())
    allowed = frozenset(bare(value.encode("ascii", "replace")) for value in detect.allow)
    if detect.published_examples == "allow":
        allowed |= PUBLISHED
    return Orders(
        enforces=detect.mode == "enforce",
        tags=tags,
        min_counts={
            "email": detect.min_count.email,
            "phone_number": detect.min_count.phone_number,
            "ip_address": detect.min_count.ip_address,
            **{one.name: one.min_count for one in detect.custom},
        },
        opaque=opaque,
        on_error=might_add if detect.on_error is None else frozenset(detect.on_error),
        allowed=allowed,
        timeout_s=detect.timeout_ms / 1000.0,
        custom=tuple(
            CustomDetector(name=one.name, pattern=one.pattern, check=one.check)
            for one in detect.custom
        ),
    )
