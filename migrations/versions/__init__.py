"""One module per schema version; imports nothing of ours."""
