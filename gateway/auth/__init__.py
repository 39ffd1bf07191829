"""Keys, tenants and the secrets they are derived from."""
