"""Errors that the embedded engine may raise, named by what the caller should do.

EngineError
  ModelFileError    the file cannot be served: tell the operator, try another file
  TemplateError     the chat template refused or failed on these messages
  RequestRejected   the caller's fault: show it, do not retry       (code, message, param)
  EngineBusy        no room now: go elsewhere or come back          (retry_after_s)
  EngineGone        the engine process or its link died: try again elsewhere
  ProtocolError     the two ends do not speak the same protocol: a defect or a version skew
"""

from __future__ import annotations


class EngineError(Exception):
    """Root of everything that `local_engine` raises on purpose."""


class ModelFileError(EngineError):
    """The model file is corrupt, truncated, hostile or of a kind that is not supported."""


class TemplateError(EngineError):
    """The chat template could not render these messages."""


class RequestRejected(EngineError):
    """The request can never succeed as it is.

    Attributes:
        code: `invalid_request_error` or `context_length_exceeded`.
        message: A sentence for the caller; it never repeats the prompt.
        param: Name of the offending field, None when no single one is to blame.
    """

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class EngineBusy(EngineError):
    """The engine's queue is full, or it is draining.

    Attributes:
        retry_after_s: Predicted seconds until there is room.
    """

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineGone(EngineError):
    """The engine process or the link to it died; the outcome of requests in flight is unknown."""


class ProtocolError(EngineError):
    """A frame or message broke the protocol; the link that carried it is closed."""
