"""Any server with an OpenAI-compatible chat endpoint; a vendor is a row of `catalog.toml`."""

from providers.compatible.provider import OpenAiCompatibleProvider
from providers.compatible.row import Row, chat_url, load_catalog
from providers.compatible.upstream import Account

__all__ = ["Account", "OpenAiCompatibleProvider", "Row", "chat_url", "load_catalog"]
