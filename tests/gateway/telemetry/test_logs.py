"""Log lines: one form for every process, nothing forged, no content."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import NoHealthyDeployment
from gateway.telemetry.logs import JsonLines, TextLines, log_fields
from tests.style.tree import REPOSITORY

CANARY = "canary-prompt-7f3a"


def written(formatter: logging.Formatter, write) -> str:
    """What a logger with this formatter writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    # Not one of the tree: pytest keeps what is logged there, and cannot send a lone surrogate from
    # process to process.
    logger = logging.Logger("gateway.test", logging.INFO)  # noqa: LOG001
    logger.addHandler(handler)
    write(logger)
    return stream.getvalue()


def json_line(write, *, handles_content: bool = False) -> dict:
    text = written(JsonLines("worker-0", handles_content=handles_content), write)
    assert text.endswith("\n")
    assert text.count("\n") == 1
    assert text.isascii()
    return json.loads(text)


def test_a_line_says_when_who_how_grave_and_what():
    line = json_line(lambda logger: logger.warning("%d left", 3))
    assert list(line) == ["time", "level", "process", "pid", "logger", "message"]
    assert datetime.fromisoformat(line["time"]).utcoffset().total_seconds() == 0
    assert (line["level"], line["process"], line["message"]) == ("warning", "worker-0", "3 left")


HOSTILE = st.text(st.characters(codec=None, categories=None) | st.sampled_from('\n\r\x1b\x85\u2028"\\'))  # fmt: skip


@given(HOSTILE)
def test_whatever_a_message_holds_it_is_one_line_and_comes_back_as_it_was(text):
    assert json_line(lambda logger: logger.info("%s", text))["message"] == text


@given(HOSTILE)
def test_a_text_line_holds_no_control_character(text):
    line = written(TextLines("x", handles_content=False), lambda logger: logger.info("%s", text))
    assert line.endswith("\n")
    assert line[:-1].isprintable()


def test_a_traceback_is_one_member():
    def fail(logger):
        try:
            raise OSError(28, "No space left on device")
        except OSError:
            logger.exception("it broke")

    line = json_line(fail)
    assert line["message"] == "it broke"
    assert line["traceback"].startswith("Traceback (most recent call last):\n")
    assert line["traceback"].endswith("No space left on device")


def test_a_text_traceback_is_indented():
    def fail(logger):
        try:
            raise ValueError("a\n2026-01-01 gateway INFO forged")
        except ValueError:
            logger.exception("it broke")

    first, *rest = written(TextLines("x", handles_content=False), fail).splitlines()
    assert first.endswith("it broke")
    assert rest
    assert all(line.startswith("    ") for line in rest)


def chained():
    try:
        int(CANARY)
    except ValueError as error:
        raise KeyError(CANARY) from error


def grouped():
    raise BaseExceptionGroup(CANARY, [ValueError(CANARY), OSError(5, "Input/output error")])


def in_context():
    try:
        {}[CANARY]
    except KeyError:
        CANARY.encode("ascii").index(CANARY.encode())
        "".join([CANARY, None])


WITHHELD = {
    "a cause": (chained, ["KeyError", "ValueError"]),
    "a group": (grouped, ["ExceptionGroup", "ValueError", "OSError: [errno 5] Input"]),
    "a context": (in_context, ["TypeError", "KeyError"]),
}


@pytest.mark.parametrize(("fail", "told"), WITHHELD.values(), ids=WITHHELD.keys())
def test_where_content_passes_the_words_of_foreign_exceptions_are_left_out(fail, told):
    def log(logger):
        try:
            fail()
        except BaseException:
            logger.exception("request failed")

    line = json_line(log, handles_content=True)
    assert CANARY not in json.dumps(line)
    for part in told:
        assert part in line["traceback"]
    assert f"in {fail.__name__}" in line["traceback"]
    assert CANARY in json.dumps(json_line(log))


def test_the_words_of_our_own_errors_are_told():
    def fail(logger):
        try:
            raise NoHealthyDeployment("none of 2 deployments can serve")
        except NoHealthyDeployment:
            logger.exception("it broke")

    told = json_line(fail, handles_content=True)["traceback"]
    assert told.endswith("gateway.errors.NoHealthyDeployment: none of 2 deployments can serve")


LOOP_MESSAGES = {
    "a task": (
        f"Task exception was never retrieved\nfuture: <Task exception=ValueError('{CANARY}')>",
        "Task exception was never retrieved",
    ),
    "a callback": (f"Exception in callback send(b'{CANARY}')\nhandle: <Handle>", "Exception in"),
}


@pytest.mark.parametrize(("message", "told"), LOOP_MESSAGES.values(), ids=LOOP_MESSAGES.keys())
def test_what_the_event_loop_says_of_arguments_is_left_out_where_content_passes(message, told):
    record = logging.makeLogRecord({"name": "asyncio", "msg": message})
    for form in (JsonLines, TextLines):
        line = form("worker-0", handles_content=True).format(record)
        assert told in line
        assert CANARY not in line
        assert CANARY in form("supervisor", handles_content=False).format(record)


def test_members_of_its_own_never_take_the_place_of_a_lines():
    fields = {"status": 200, "team": "Équipe", "level": "forged", "pid": -1, "cost_usd": None}
    line = json_line(lambda logger: log_fields(logger, "request", fields))
    assert line["status"] == 200
    assert line["team"] == "Équipe"
    assert line["cost_usd"] is None
    assert line["level"] == "info"
    assert line["pid"] > 0


def test_a_text_line_has_its_members_too():
    fields = {"status": 200, "team": "a\nb"}
    text = written(
        TextLines("x", handles_content=False), lambda logger: log_fields(logger, "request", fields)
    )
    assert text.endswith("request status=200 team=a\\nb\n")


def test_setting_up_again_changes_the_form_of_the_same_handler():
    program = (
        "import logging\n"
        "from gateway.telemetry.logs import set_up_logging\n"
        "set_up_logging('a'); logging.info('one')\n"
        "set_up_logging('b', log_format='text'); logging.info('two')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    first, second = ended.stderr.splitlines()
    assert json.loads(first)["message"] == "one"
    assert second.endswith(" b INFO root: two")
    assert ended.stdout == ""
