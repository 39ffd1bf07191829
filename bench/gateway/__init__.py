"""The gateway benchmark: Fareway and its peers under one load, and the ledger's proof."""
