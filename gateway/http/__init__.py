"""Raw ASGI for the hot routes, FastAPI for everything else."""
