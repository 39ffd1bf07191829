"""Spool, loader, schema and reports."""
