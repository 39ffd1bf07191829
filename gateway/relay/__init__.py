"""Runs a decision: attempts, timeouts, fallback, settlement."""
