"""Adapter for the conformance kit: the kit's own Fareway adapter, without what is not built.

The kit imports adapters by name, so this file is copied beside them.
"""

from adapters import fareway  # type: ignore[import-not-found]

RETRIES_WITHIN_S = 30


def make_config(deployments, settings, workdir):
    """See the kit's `adapters/fareway.py`; Anthropic upstreams and embeddings are left out."""
    built = [d for d in deployments if d["provider"] == "openai" and d["kind"] == "chat"]
    return fareway.make_config(built, settings, workdir)
