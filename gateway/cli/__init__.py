"""The `fareway` command."""
