"""Detectors: what a request's text holds that calls for a privacy tag. They only ever add tags."""
