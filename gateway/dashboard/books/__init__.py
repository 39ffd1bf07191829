"""Pages with which a controller closes a month: bills, differences, corrections, the close."""
