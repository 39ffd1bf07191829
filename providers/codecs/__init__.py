"""Pure wire translation between our types and a vendor's bytes."""
