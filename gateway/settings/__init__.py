"""The configuration file as Pydantic models, and the only reader of the environment."""
