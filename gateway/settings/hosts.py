"""What a host name tells about who runs it, without asking the network.

`VENDOR_DOMAINS` are domains under which vendors serve models; a deployment there is never
self-hosted, whatever its operator writes.
"""

from __future__ import annotations

import ipaddress
import socket

VENDOR_DOMAINS = (
    "ai.azure.com",
    "aiplatform.googleapis.com",
    "anthropic.com",
    "cerebras.ai",
    "cohere.ai",
    "cohere.com",
    "cognitiveservices.azure.com",
    "deepinfra.com",
    "deepseek.com",
    "fireworks.ai",
    "generativelanguage.googleapis.com",
    "groq.com",
    "hyperbolic.xyz",
    "inference.ml.azure.com",
    "inference.net",
    "lambda.ai",
    "mistral.ai",
    "moonshot.ai",
    "nebius.com",
    "novita.ai",
    "openai.azure.com",
    "openai.com",
    "openrouter.ai",
    "perplexity.ai",
    "replicate.com",
    "sambanova.ai",
    "together.ai",
    "together.xyz",
    "x.ai",
)

AWS_DOMAINS = ("amazonaws.com", "api.aws")
"""Domains that Bedrock shares with machines that AWS rents out, which can be self-hosted."""

PRIVATE_SUFFIXES = (
    "cluster.local",
    "corp",
    "home.arpa",
    "internal",
    "intranet",
    "lan",
    "local",
    "localhost",
    "private",
    "svc",
    "test",
)

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def vendor_domain(host: str) -> str | None:
    """The vendor domain that a host is in, None when it is in none."""
    name = _normal(host)
    for domain in AWS_DOMAINS:
        if _is_under(name, domain):
            is_bedrock = any(label.startswith("bedrock") for label in name.split("."))
            return domain if is_bedrock else None
    return next((domain for domain in VENDOR_DOMAINS if _is_under(name, domain)), None)


def is_publicly_routable(host: str) -> bool:
    """Whether a host can stand for an address of the public internet.

    Names are judged by their form: single labels and private suffixes are private, every other
    name is taken to be public, because what it resolves to can change.
    """
    name = _normal(host)
    address = _address(name)
    if address is not None:
        return address.is_global
    return "." in name and not any(_is_under(name, suffix) for suffix in PRIVATE_SUFFIXES)


def _normal(host: str) -> str:
    return host.strip("[]").rstrip(".").lower()


def _is_under(name: str, domain: str) -> bool:
    return name == domain or name.endswith(f".{domain}")


def _address(name: str) -> Address | None:
    """The address that a host is, in any form that the system's resolver takes for one."""
    try:
        address: Address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        pass
    else:
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return mapped or address
    try:
        # `134744072`, `0x08080808` and `8.8` are addresses too, although they look like names.
        return ipaddress.IPv4Address(socket.inet_aton(name))
    except (OSError, UnicodeEncodeError):
        return None
