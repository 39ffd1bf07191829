"""Finance: what vendors bill against what the ledger holds, corrections, and closed months."""
