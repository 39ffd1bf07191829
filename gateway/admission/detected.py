"""What detectors found, on its way into a decision: tags that are added, and what a denial says."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace

import msgspec

from gateway.detect.detection import Detected
from gateway.dialects.controls import Controls
from gateway.routing.refusal import Refusal, RefusalCode

SOURCES_MAX = 3
"""Tags whose detectors a denial spells out."""

_OF_PRIVACY = frozenset({RefusalCode.PRIVACY_DENIED, RefusalCode.PRIVATE_CAPACITY_UNAVAILABLE})


def with_detected(controls: Controls, detected: Detected) -> Controls:
    """The request's controls with the tags that detectors add."""
    if detected.tags <= controls.tags:
        return controls
    return msgspec.structs.replace(controls, tags=controls.tags | detected.tags)


def explained(refusal: Refusal, detected: Detected, carried: AbstractSet[str]) -> Refusal:
    """A refusal that says which detector brought it about, and how to go on; never what it found.

    Args:
        refusal: Why nothing can be tried.
        detected: What was found.
        carried: Closed tags that the request has without detectors.
    """
    added = sorted(detected.tags - carried)
    if refusal.code not in _OF_PRIVACY or not added:
        return refusal
    shown = "; ".join(f"{tag} by {detected.sources[tag]}" for tag in added[:SOURCES_MAX])
    more = f"; and {len(added) - SOURCES_MAX} more" if len(added) > SOURCES_MAX else ""
    first = next(iter(detected.findings), None)
    return replace(
        refusal,
        message=f"{refusal.message}. Detectors added tags: {shown}{more}. Take that out of the"
        " request, or ask for a model with a deployment that satisfies them; what is nobody's can"
        " be listed under privacy.detect.allow",
        param=refusal.param if first is None else first.path,
    )
