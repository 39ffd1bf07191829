"""One file per provider with rules of its own."""
