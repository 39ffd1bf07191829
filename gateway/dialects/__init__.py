"""Wire formats facing clients."""
