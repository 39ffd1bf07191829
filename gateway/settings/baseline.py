"""Section `finance.baseline`: what savings are measured against, named in advance.

What machines are compared with is given in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from gateway.settings.models import check_deployment
from gateway.settings.prices import Prices
from gateway.settings.scalars import Name, Section, TextOrSection


class BaselineDeployment(TextOrSection):
    """Where requests would have gone; plain text stands for one without a price."""

    deployment: Annotated[str, AfterValidator(check_deployment)]
    """`provider/model-id`; a deployment of the models, or any other one with a price here."""
    price: Prices = ()
    """Its price; unset: that of the same deployment under `models`."""


class BaselineSettings(Section):
    """What the usage of models would have cost without routing."""

    models: Mapping[Name, BaselineDeployment] = Field(default_factory=dict[str, BaselineDeployment])
    """Models, each with the deployment that its requests are compared with."""
