"""Renders a conversation into a prompt with the template that the model file carries."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import jinja2

from local_engine.errors import TemplateError
from local_engine.template_sandbox import MAX_ERROR_CHARS, Meter, TemplateSandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MAX_SOURCE_CHARS: Final = 262_144
# Templates copy what they print a few times (strip, split, concatenate) before printing it.
_BUDGET_PER_OUTPUT_CHAR: Final = 16


class ChatTemplate:
    """A compiled template; rendering is safe from any thread, one at a time."""

    def __init__(
        self,
        source: str,
        *,
        bos_text: str,
        eos_text: str,
        max_output_chars: int = 4_000_000,
        deadline_s: float = 2.0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Compile the template; none of its code runs.

        Args:
            source: Jinja text from the model file.
            bos_text: What the template sees as `bos_token`.
            eos_text: What the template sees as `eos_token`.
            max_output_chars: Longest prompt to render.
            deadline_s: Longest time that one rendering may take.
            now: The date that `strftime_now` formats.
            clock: Monotonic seconds.

        Raises:
            TemplateError: It does not parse or uses what is not allowed.
        """
        if len(source) > MAX_SOURCE_CHARS:
            raise TemplateError(
                f"the chat template has {len(source)} characters, more than {MAX_SOURCE_CHARS}"
            )
        self._tokens = {"bos_token": bos_text, "eos_token": eos_text}
        self._max_output_chars = max_output_chars
        self._deadline_s = deadline_s
        self._clock = clock
        self._lock = threading.Lock()
        self._sandbox = TemplateSandbox(now=now, meter=self._new_meter())
        try:
            code = self._sandbox.compile(self._sandbox.parse_checked(source))
            self._template = jinja2.Template.from_code(
                self._sandbox, code, {**self._sandbox.globals}
            )
        except (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError) as error:
            raise TemplateError(f"the chat template does not compile: {_say(error)}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Render a conversation.

        Args:
            messages: In OpenAI form: `role`, `content` and whatever else the template reads.
            add_generation_prompt: End with the opening of an answer.
            variables: Further names for the template, for example `tools`.

        Raises:
            TemplateError: The template refused the messages, broke a rule or exceeded a limit.
        """
        with self._lock:
            self._sandbox.meter = self._new_meter()
            names = {
                **self._tokens,
                **variables,
                "messages": messages,
                "add_generation_prompt": add_generation_prompt,
            }
            try:
                return self._collect(names)
            except (
                jinja2.TemplateError,
                ArithmeticError,
                AttributeError,
                LookupError,
                RecursionError,
                TypeError,
                ValueError,
            ) as error:
                raise TemplateError(f"the chat template failed: {_say(error)}") from error

    def _collect(self, names: Mapping[str, Any]) -> str:
        parts: list[str] = []
        length = 0
        for part in self._template.generate(names):
            length += len(part)
            if length > self._max_output_chars:
                raise TemplateError(
                    f"the chat template printed more than {self._max_output_chars} characters: "
                    "shorten the conversation"
                )
            parts.append(part)
        return "".join(parts)

    def _new_meter(self) -> Meter:
        return Meter(
            budget=self._max_output_chars * _BUDGET_PER_OUTPUT_CHAR,
            deadline_s=self._deadline_s,
            clock=self._clock,
        )


def _say(error: BaseException) -> str:
    """One bounded line; a template could put a whole prompt into its error."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text[:MAX_ERROR_CHARS]
