"""Readers of vendors' files: bytes to checked rows; no database, no conversion of currencies."""
