"""Schema history, frozen in time."""
