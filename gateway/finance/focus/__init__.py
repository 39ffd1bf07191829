"""Export of the ledger in FOCUS, the FinOps Open Cost and Usage Specification."""
