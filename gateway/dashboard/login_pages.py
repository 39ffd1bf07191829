"""Log in with a password, a key or at the identity provider; log out here or everywhere."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fastapi import Request, Response

from gateway.access.people import (
    FailedLogin,
    KeyLogin,
    LoginAnswer,
    OidcLogin,
    PasswordLogin,
    Passwords,
    SessionEnd,
)
from gateway.auth.credentials import is_sendable
from gateway.auth.directory import AuthFailure, Principal
from gateway.dashboard.sessions import DEVICE, DEVICE_S, LOGIN, OIDC, SESSION
from gateway.dashboard.shell import LOGIN_PATH, PATH, Shell, form_of, next_of, to
from gateway.oidc.faults import OidcFault
from gateway.oidc.flow import TRANSACTION_S, OidcFlow

logger = logging.getLogger(__name__)

CALLBACK_PATH = f"{LOGIN_PATH}/oidc/callback"
PASSWORD_CHARACTERS_MAX = 1024
"""Longer ones are not looked at."""
_STALE = "this form is too old, or the browser keeps no cookies for this site; try again"
_DONE = {"password": "The password is set. Log in with it."}
_WRONG = "the name or the password is not right"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginPages:
    """The ways in and out.

    Attributes:
        shell: What pages share.
        oidc: The identity provider, None without one.
    """

    shell: Shell
    oidc: OidcFlow | None

    def routes(self) -> Sequence[tuple[str, str, Callable[..., object]]]:
        """Method, path below `/ui` and handler of each."""
        return (
            ("GET", "/login", self.login_form),
            ("POST", "/login", self.log_in),
            ("POST", "/logout", self.log_out),
            ("GET", "/login/oidc", self.begin_oidc),
            ("GET", "/login/oidc/callback", self.finish_oidc),
        )

    async def login_form(self, request: Request) -> Response:
        """Ask who it is, unless the browser has a session."""
        where = next_of(request.query_params.get("next", ""))
        if await self.shell.find(request) is not None:
            return to(where)
        return await self._form_page(request, {"next": where})

    async def log_in(self, request: Request) -> Response:
        """Open a session with a password or a key."""
        form = await form_of(request)
        if not self.shell.is_ours(request, form, None):
            return await self._form_page(request, form, message=_STALE, status=403)
        session = self.shell.sessions.new()
        if "login" in form:
            answer = await self._try_password(request, form, session.digest)
        else:
            answer = await self._try_key(request, form.get("key", "").strip(), session.digest)
        if isinstance(answer, str):
            return await self._form_page(request, form, message=answer, status=401)
        if answer.refusal == "wait":
            message = f"too many attempts: wait {answer.wait_s} s"
            return await self._form_page(
                request, form, message=message, status=429, retry_after_s=answer.wait_s
            )
        if answer.refusal:
            message = _WRONG
            if answer.refusal == "passwords_off":
                message = "passwords are switched off here"
            return await self._form_page(request, form, message=message, status=401)
        return await self._let_in(request, session.cookie, answer, next_of(form.get("next", "")))

    async def log_out(self, request: Request) -> Response:
        """End the browser's session, or all sessions of whoever has it."""
        seen = await self.shell.find(request)
        if seen is not None:
            form = await form_of(request)
            if not self.shell.is_ours(request, form, seen):
                return self.shell.page("refused.html", {}, status=403)
            end = SessionEnd(session=seen.digest, is_everywhere=form.get("everywhere") == "yes")
            await self.shell.people.end_session(end)
        answer = to(LOGIN_PATH)
        self.shell.drop_cookie(request, answer, SESSION)
        return answer

    async def begin_oidc(self, request: Request) -> Response:
        """Send the browser to the identity provider."""
        if self.oidc is None:
            return to(LOGIN_PATH)
        if request.headers.get("sec-fetch-site") == "cross-site":
            return to(LOGIN_PATH)  # nobody else begins a login here
        try:
            begun = await self.oidc.begin(next_of(request.query_params.get("next", "")))
        except OidcFault as fault:
            return await self._oidc_fault(request, fault)
        answer = to(begun.url)
        sealed = self.shell.sessions.seal("oidc", begun.kept)
        self.shell.set_cookie(request, answer, OIDC, sealed, TRANSACTION_S)
        return answer

    async def finish_oidc(self, request: Request) -> Response:
        """Take the identity provider's answer and open a session."""
        if self.oidc is None:
            return to(LOGIN_PATH)
        kept = self.shell.sessions.unseal("oidc", self.shell.cookie(request, OIDC))
        session = self.shell.sessions.new()
        try:
            identity = await self.oidc.finish(dict(request.query_params), kept)
            login = OidcLogin(
                issuer=identity.issuer,
                subject=identity.subject,
                name=identity.name,
                grants=identity.grants,
                state=identity.state,
                session=session.digest,
                lifetime_s=self.shell.login.session_s,
                caller=self.shell.caller(request),
            )
            answer = await self.shell.people.log_in_oidc(login)
            if answer.refusal:
                raise _refused(answer.refusal)
        except OidcFault as fault:
            return await self._oidc_fault(request, fault)
        response = await self._let_in(request, session.cookie, answer, identity.next_path)
        self.shell.drop_cookie(request, response, OIDC)
        return response

    async def _oidc_fault(self, request: Request, fault: OidcFault) -> Response:
        logger.warning("a login through the identity provider failed: %s", fault.reason)
        if not fault.is_recorded:
            caller = self.shell.caller(request)
            await self.shell.people.note_failed_login(
                FailedLogin(reason=fault.reason, caller=caller)
            )
        shown = {"message": fault.sentence, "mend": fault.mend}
        answer = self.shell.page("oidc_fault.html", shown, status=fault.status)
        self.shell.drop_cookie(request, answer, OIDC)
        return answer

    async def _try_password(
        self, request: Request, form: Mapping[str, str], digest: bytes
    ) -> LoginAnswer:
        password = form.get("password", "")
        if len(password) > PASSWORD_CHARACTERS_MAX:
            password = ""  # wrong in any case
        login = PasswordLogin(
            login=form["login"][:128],
            password=password,
            session=digest,
            lifetime_s=self.shell.login.session_s,
            passwords=Passwords(self.shell.login.passwords),
            caller=self.shell.caller(request),
        )
        return await self.shell.people.log_in_password(login)

    async def _try_key(self, request: Request, key: str, digest: bytes) -> LoginAnswer | str:
        """Open a session for a key, or say why it opens none."""
        if not self.shell.login.api_keys:
            return "keys do not open the dashboard here"
        found = self._find(key)
        is_known = isinstance(found, Principal)
        key_id = found.key_id if is_known else ""
        login = KeyLogin(
            key_id=key_id,
            mark=(self.shell.sessions.mark(key_id) or b"") if is_known else b"",
            session=digest,
            lifetime_s=self.shell.login.session_s,
            caller=self.shell.caller(request),
        )
        answer = await self.shell.people.log_in_key(login)
        if isinstance(found, str) and answer.refusal != "wait":
            return found
        return answer

    def _find(self, key: str) -> Principal | str:
        """Whose key it is, or why it opens nothing."""
        token = key.encode("utf-8", "surrogatepass")
        if not is_sendable(token):
            return "the API key is malformed: check that it was copied whole"
        directory = self.shell.sessions.directory()
        found = directory.identify(token, now_us=self.shell.clock.wall_us())
        if isinstance(found, AuthFailure):
            return found.message
        if not found.is_admin and not found.team:
            return "this key belongs to no team, so there is nothing that it could show"
        return found

    async def _let_in(
        self, request: Request, cookie: str, answer: LoginAnswer, where: str
    ) -> Response:
        """Give the browser its new session; the one that it had is over."""
        shell = self.shell
        before = shell.sessions.digest(shell.cookie(request, SESSION))
        if before is not None:
            await shell.people.end_session(SessionEnd(session=before))
        response = to(where)
        shell.set_cookie(request, response, SESSION, cookie, shell.login.session_s)
        shell.drop_cookie(request, response, LOGIN)
        if answer.device:
            sealed = shell.sessions.seal("device", answer.device.encode("ascii"))
            shell.set_cookie(request, response, DEVICE, sealed, DEVICE_S)
        return response

    async def _form_page(
        self,
        request: Request,
        form: Mapping[str, str],
        *,
        message: str = "",
        status: int = 200,
        retry_after_s: int | None = None,
    ) -> Response:
        login = self.shell.login
        state = await self.shell.people.login_state(Passwords(login.passwords))
        takes_passwords = state.has_people and state.takes_passwords
        wants_key = request.query_params.get("with") == "key" or "key" in form
        by_key = login.api_keys and (wants_key or not (takes_passwords or self.oidc))
        shown = {
            "message": message,
            "done": _DONE.get(request.query_params.get("done", ""), ""),
            "next": next_of(form.get("next", "")),
            "login": form.get("login", "")[:128],
            "by_key": by_key,
            "takes_keys": login.api_keys,
            "takes_passwords": takes_passwords,
            "oidc_label": self.oidc.label if self.oidc else "",
            "first": PATH,
        }
        return self.shell.entry_page(
            request, "login.html", shown, status=status, retry_after_s=retry_after_s
        )


def _refused(refusal: str) -> OidcFault:
    if refusal == "disabled":
        sentence, mend = "your account is disabled here", "Ask a platform administrator."
    else:
        sentence = "this answer of the identity provider was used before"
        mend = "Begin again from the login page."
    return OidcFault(refusal, sentence, mend=mend, is_recorded=True)
