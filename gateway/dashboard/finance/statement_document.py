"""A statement as one HTML document without anything from elsewhere: to be kept and printed."""

from __future__ import annotations

from jinja2 import Environment

from gateway.clock import from_microseconds
from gateway.dashboard.finance.statement import state_text, statement
from gateway.finance.statement_messages import TeamStatement


def statement_html(given: TeamStatement, templates: Environment) -> str:
    """The document; styles are in it, scripts are not, and it may be printed as it is."""
    return templates.get_template("statement_document.html").render(
        team=given.team,
        organisation=given.organisation,
        period=given.period,
        first_day=given.first_day,
        last_day=given.last_day,
        state=state_text(given),
        as_of=from_microseconds(given.as_of_us).isoformat(timespec="seconds"),
        page=statement(given),
    )
