"""The service: turns a client call into attempts and ledger events."""
