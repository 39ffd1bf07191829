"""Metrics; no content, low cardinality."""
