"""Exact arithmetic from usage to money."""
