"""The whole configuration file as one model."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from gateway.settings.alerts import AlertSettings
from gateway.settings.budgets import OrganisationSettings
from gateway.settings.credentials import AdminSettings, SecretsSettings
from gateway.settings.egress import EgressSettings
from gateway.settings.finance import FinanceSettings
from gateway.settings.login import LoginSettings
from gateway.settings.models import ModelSettings
from gateway.settings.privacy import PrivacySettings
from gateway.settings.providers import ProviderSettings
from gateway.settings.retention import RetentionSettings
from gateway.settings.routing import RoutingSettings
from gateway.settings.scalars import FilePath, Many, Name, ProviderName, Section
from gateway.settings.server import ServerSettings
from gateway.settings.storage import StorageSettings, StoredObjectSettings
from gateway.settings.teams import TeamSettings
from gateway.settings.telemetry import TelemetrySettings


class Settings(Section):
    """Everything that `fareway.yaml` can say (contract 5)."""

    include: Many[FilePath] = ()
    """Further files, as globs beside this one; each adds sections or named entries."""
    server: ServerSettings = Field(default_factory=ServerSettings)
    """Where the gateway listens and how long it waits."""
    storage: StorageSettings = Field(default_factory=StorageSettings)
    """Database, journal and what is kept."""
    admin: AdminSettings = Field(default_factory=AdminSettings)
    """The administrator's key."""
    secrets: SecretsSettings = Field(default_factory=SecretsSettings)
    """The master key."""
    stored_objects: StoredObjectSettings = Field(default_factory=StoredObjectSettings)
    """Files, batches and stored responses."""
    providers: Mapping[ProviderName, ProviderSettings] = Field(
        default_factory=dict[str, ProviderSettings]
    )
    """Accounts, servers and the embedded engine, by name."""
    models: Mapping[Name, ModelSettings] = Field(default_factory=dict[str, ModelSettings])
    """Logical models by name."""
    organisation: OrganisationSettings = Field(default_factory=OrganisationSettings)
    """What everybody together may spend."""
    teams: Mapping[Name, TeamSettings] = Field(default_factory=dict[str, TeamSettings])
    """Teams by name."""
    privacy: PrivacySettings = Field(default_factory=PrivacySettings)
    """Tags, floor, detectors and sinks."""
    egress: EgressSettings = Field(default_factory=EgressSettings)
    """Where the service's processes may connect to."""
    routing: RoutingSettings = Field(default_factory=RoutingSettings)
    """How a deployment is chosen and how often it is tried."""
    login: LoginSettings = Field(default_factory=LoginSettings)
    """How people get to the dashboard."""
    finance: FinanceSettings = Field(default_factory=FinanceSettings)
    """How spend is reported."""
    alerts: AlertSettings = Field(default_factory=AlertSettings)
    """Who is told when a budget crosses a threshold."""
    retention: RetentionSettings = Field(default_factory=RetentionSettings)
    """What is kept for how long."""
    telemetry: TelemetrySettings = Field(default_factory=TelemetrySettings)
    """Logs and traces."""
