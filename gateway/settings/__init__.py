"""The configuration file as Pydantic models, and the only reader of the environment.

Start at `loader.load`; `document.Settings` is the whole file.
"""
