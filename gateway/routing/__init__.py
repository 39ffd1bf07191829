"""From an immutable fleet snapshot and a request to a decision; pure."""
