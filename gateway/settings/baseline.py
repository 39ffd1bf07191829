"""Section `finance.baseline`: what savings are measured against, named in advance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gateway.settings.models import check_deployment
from gateway.settings.prices import Prices
from gateway.settings.scalars import Name, Section
from gateway.settings.trust import or_text


class BaselineDeployment(Section):
    """Where a model's requests would have gone; plain text stands for one without a price."""

    deployment: Annotated[str, AfterValidator(check_deployment)]
    """`provider/model-id`; a deployment of the models, or any other one with a price here."""
    price: Prices = ()
    """Its price; unset: that of the same deployment under `models`."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"deployment": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Let editors accept the short form too."""
        return or_text(core_schema, handler)


class BaselineSettings(Section):
    """What the usage of models would have cost without routing."""

    models: Mapping[Name, BaselineDeployment] = Field(default_factory=dict[str, BaselineDeployment])
    """Models, each with the deployment that its requests are compared with."""
