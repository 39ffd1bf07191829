"""Rate limits: requests and tokens per minute, and requests at once, shared by all workers."""
