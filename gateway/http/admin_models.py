"""What the administration API takes and answers; unknown fields are refused, everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gateway.access.restriction import Restriction
from gateway.clock import from_microseconds
from gateway.finance.spend_question import SpendWords
from gateway.key_rotation import GRACE_HOURS, GRACE_HOURS_MAX
from gateway.ledger.views import COST_TAG, GroupBy, RecentRequest, SpendQuery, is_dimension
from gateway.privacy.certificate import Certificate
from gateway.settings.budget_orders import KeyBudgetOrder
from gateway.settings.limits import LimitSettings
from gateway.settings.scalars import Instant, Name
from pricing.money import format_usd

REQUESTS_MAX = 500

KeyState = Literal["active", "expired", "revoked"]
FilterValue = Annotated[str | None, Field(max_length=512)]
FilterValues = Annotated[list[Annotated[str, Field(max_length=512)]], Field(max_length=64)]


class AdminModel(BaseModel):
    """Settings of every model here."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class NewKeyBody(AdminModel):
    """A key to be made."""

    team: Name = Field(description="A team of the configuration.")
    name: Name = Field(description="What the key is for; unique among the team's keys in use.")
    project: Name | None = Field(default=None, description="A project of the team.")
    models: list[Name] | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Models that it may use, of those of its team; `*` stands for any characters.",
    )
    tags: list[Name] = Field(
        default_factory=list,
        max_length=64,
        description="Privacy tags that each of its requests carries, beside its team's.",
    )
    expires_at: Instant | None = Field(default=None, description="From then on it is void.")
    limits: LimitSettings | None = Field(
        default=None, description="Its own rate limits, inside its team's and project's."
    )
    budget: KeyBudgetOrder | None = Field(default=None, description="What it may spend.")


class KeyView(AdminModel):
    """A key as it is told; the key itself is nowhere."""

    key_id: str
    team: str
    project: str | None
    name: str
    models: list[str] | None = Field(description="Null: all of the team's.")
    tags: list[str] = Field(description="Privacy tags that each of its requests carries.")
    limits: LimitSettings | None = Field(description="Null: those of its team and project alone.")
    state: KeyState
    source: Literal["file", "database"] = Field(description="Where it can be changed.")
    created_at: datetime | None = Field(description="Null for keys of the configuration file.")
    expires_at: datetime | None
    revoked_at: datetime | None


class KeyList(AdminModel):
    """Every key, by team and name."""

    keys: list[KeyView]


class CreatedKey(AdminModel):
    """A key that was just made, with its effective values."""

    key: str = Field(description="What clients send. Shown only now.")
    key_id: str
    team: str
    project: str | None
    name: str
    models: list[str] | None
    tags: list[str]
    limits: LimitSettings | None
    expires_at: datetime | None
    budget: KeyBudgetOrder | None = Field(description="Null: only its team's budgets count.")


class RotationBody(AdminModel):
    """How a key is replaced."""

    grace_hours: int = Field(
        default=GRACE_HOURS,
        ge=0,
        le=GRACE_HOURS_MAX,
        description="Hours for which the replaced key goes on.",
    )


class RotatedKey(AdminModel):
    """A key's successor that was just made; scope, limits and budgets are the same."""

    key: str = Field(description="What clients send. Shown only now.")
    key_id: str
    team: str
    name: str
    replaces: str = Field(description="Id of the key that it replaces.")
    replaced_until: datetime = Field(description="From then on the replaced key is void.")


class RevokedKey(AdminModel):
    """A key that no worker takes any more."""

    key_id: str
    state: Literal["revoked"] = "revoked"


class TeamView(AdminModel):
    """A team of the configuration."""

    name: str
    tags: list[str] = Field(description="Privacy tags that each of its requests carries.")
    projects: list[str]
    models: list[str] | None = Field(description="Patterns that it may use; null: all.")


class TeamList(AdminModel):
    """Every team, by name."""

    teams: list[TeamView]


def _check_dimension(name: str) -> str:
    if not is_dimension(name):
        raise ValueError(f"must be one of {', '.join(GroupBy)}, {COST_TAG}<name>")
    return name


Dimension = Annotated[str, Field(max_length=80), AfterValidator(_check_dimension)]


class SpendParams(AdminModel):
    """Which report is wanted. A filter may be repeated: any one of its values."""

    by: list[Dimension] = Field(
        default=[GroupBy.TEAM.value],
        min_length=1,
        max_length=6,
        description="Repeat for several; `cost_tag:<name>` for a cost tag of `finance.cost_tags`.",
    )
    from_: Annotated[str | None, Field(max_length=40)] = Field(
        default=None,
        alias="from",
        description="First day or instant, ISO 8601; in the zone unless it says otherwise.",
    )
    to: Annotated[str | None, Field(max_length=40)] = Field(
        default=None, description="First day or instant not counted."
    )
    month: Annotated[str | None, Field(max_length=7)] = Field(
        default=None, description="A month such as 2026-11, in place of `from` and `to`."
    )
    zone: Annotated[str | None, Field(max_length=64)] = Field(
        default=None, description="IANA time zone of hours, days and months; unset: the settings'."
    )
    currency: Annotated[str | None, Field(max_length=3)] = Field(
        default=None, description="Currency beside dollars; unset: the settings'."
    )
    team: FilterValues = []
    project: FilterValues = []
    cost_centre: FilterValues = []
    key: FilterValues = []
    model: FilterValues = []
    provider: FilterValues = []
    deployment: FilterValues = []
    privacy_tag: FilterValues = Field(default=[], description="Requests that carry it.")
    privacy_tags: FilterValues = Field(default=[], description="Exactly this set: `a,b`.")
    status: FilterValues = []
    quality: FilterValues = []
    cost_tag: FilterValues = Field(default=[], description="`name=value`.")
    with_adjustments: bool = Field(
        default=False,
        description="Whether rows say what the months are charged for, late usage and adjustments"
        " included; whole months in UTC.",
    )

    def words(self, within: Restriction) -> SpendWords:
        """The question, about the rows that may be seen."""
        return SpendWords(
            by=self.by,
            from_=self.from_,
            to=self.to,
            month=self.month,
            zone=self.zone,
            currency=self.currency,
            filters={
                GroupBy.TEAM: self.team,
                GroupBy.PROJECT: self.project,
                GroupBy.COST_CENTRE: self.cost_centre,
                GroupBy.KEY: self.key,
                GroupBy.MODEL: self.model,
                GroupBy.PROVIDER: self.provider,
                GroupBy.DEPLOYMENT: self.deployment,
                GroupBy.PRIVACY_TAG: self.privacy_tag,
                GroupBy.PRIVACY_TAGS: self.privacy_tags,
                GroupBy.STATUS: self.status,
                GroupBy.QUALITY: self.quality,
            },
            cost_tags=self.cost_tag,
            teams=within.sums,
            with_adjustments=self.with_adjustments,
        )


class EffectiveQuery(AdminModel):
    """The query that was answered."""

    by: list[str]
    from_: datetime | None = Field(serialization_alias="from")
    to: datetime | None
    zone: str
    currency: str
    filters: dict[str, list[str]]

    @classmethod
    def of(cls, query: SpendQuery) -> EffectiveQuery:
        """The query as the ledger was asked."""
        return cls(
            by=[str(name) for name in query.group_by],
            from_=None if query.from_us is None else from_microseconds(query.from_us),
            to=None if query.to_us is None else from_microseconds(query.to_us),
            zone=query.zone,
            currency=query.currency,
            filters={
                str(name): [values] if isinstance(values, str) else list(values)
                for name, values in query.filters.items()
            },
        )


class SpendAnswer(AdminModel):
    """A report; amounts are exact, as decimal strings in dollars and as picodollars."""

    query: EffectiveQuery
    is_complete: bool = Field(description="Whether all that ended before the call is in it.")
    rows: list[dict[str, int | str]]
    total: dict[str, int | str]
    zone: str
    currency: str
    is_partition: bool = Field(
        description="Whether each attempt is in one row; where it is not, rows do not add up."
    )


class RequestParams(AdminModel):
    """Which requests are wanted."""

    limit: int = Field(default=50, ge=1, le=REQUESTS_MAX)
    team: FilterValue = None


class RequestView(AdminModel):
    """One request; its last attempt says how it ended, amounts are of all attempts."""

    request_id: str
    at: datetime
    team: str
    project: str
    key_id: str
    model: str
    deployment: str
    reason: str
    attempts: int
    status: str
    error_code: str
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    cost_usd: str | None = Field(description="Decimal string; null while the price is unknown.")
    cost_pico_usd: int | None
    is_estimated: bool
    ttft_ms: float | None
    duration_ms: float

    @classmethod
    def of(cls, request: RecentRequest) -> RequestView:
        """A request as the ledger tells it."""
        cost = request.cost_pico_usd
        return cls(
            request_id=request.request_id,
            at=from_microseconds(request.at_us),
            team=request.team,
            project=request.project,
            key_id=request.key_id,
            model=request.model,
            deployment=request.deployment,
            reason=request.reason,
            attempts=request.attempts,
            status=request.status,
            error_code=request.error_code,
            input_tokens=request.input_tokens,
            cached_input_tokens=request.cached_input_tokens,
            output_tokens=request.output_tokens,
            cost_usd=None if cost is None else format_usd(cost),
            cost_pico_usd=cost,
            is_estimated=request.is_estimated,
            ttft_ms=None if request.ttft_us is None else request.ttft_us / 1000,
            duration_ms=request.duration_us / 1000,
        )


class RequestList(AdminModel):
    """The newest requests, newest first."""

    limit: int
    team: str | None
    is_complete: bool = Field(description="Whether all that ended before the call is in it.")
    requests: list[RequestView]


class EngineSpeedView(AdminModel):
    """Whole tokens per busy second."""

    prefill_tps: int
    decode_tps: int


class StatusAnswer(AdminModel):
    """The running gateway."""

    url: str
    pids: Mapping[str, int] = Field(description="Process ids by role.")
    engines: Mapping[str, str] = Field(description="`ready`, or why not, per local deployment.")
    speeds: Mapping[str, EngineSpeedView] = Field(
        description="Measured speed per local deployment; quotes are made from it."
    )
    keys_revision: int
    config_digest: str = Field(description="Of the configuration that new connections get.")
    reload_fault: str = Field(
        description="Why the configuration on disk is not the one in service; empty when it is."
    )
    ledger: Mapping[str, int | str] | None = Field(description="Null while it is away.")
    ledger_fault: str = Field(description="Why the ledger is away, empty when it is not.")


class CertificateView(AdminModel):
    """The certificate of a proof."""

    digest: str
    policy_digest: str
    inventory_digest: str = Field(description="Of names, floors and who may ask for what.")
    cells: int = Field(description="Combinations that were looked at.")
    is_complete: bool = Field(description="Whether every set of tags was walked.")
    instants: int = Field(description="The moment of the proof, and every later expiry.")
    proved_at: datetime
    version: str

    @classmethod
    def of(cls, certificate: Certificate) -> CertificateView:
        """A view of a certificate."""
        members = asdict(certificate)
        members.pop("format")
        return cls.model_validate({"digest": certificate.digest, **members})


class PolicyAnswer(AdminModel):
    """The privacy policy that decides."""

    policy_digest: str
    certificate: CertificateView | None = Field(
        description="Null where the policy was proved inside this process."
    )
