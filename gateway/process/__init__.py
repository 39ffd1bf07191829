"""Supervisor, workers, ledger process, and the channels between them."""
