"""One's own account: roles, another password, log out everywhere; and setting a first password."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fastapi import Request, Response

from gateway.access.passwords import PASSWORD_CHARACTERS_MAX, PASSWORD_CHARACTERS_MIN
from gateway.access.people import CodeUse, PasswordChange, PersonKind, digest_of
from gateway.dashboard.shell import LOGIN_PATH, PATH, Shell, form_of, to
from gateway.errors import InvalidField, PersonConflict

CODE_PATH = f"{PATH}/set-password"
_DIFFERENT = "the two new passwords are not the same"
_STALE = "this form is too old, or the browser keeps no cookies for this site; try again"
_LIMITS = {"min": PASSWORD_CHARACTERS_MIN, "max": PASSWORD_CHARACTERS_MAX}


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountPages:
    """Pages about whoever looks.

    Attributes:
        shell: What pages share.
    """

    shell: Shell

    def routes(self) -> Sequence[tuple[str, str, Callable[..., object]]]:
        """Method, path below `/ui` and handler of each."""
        return (
            ("GET", "/account", self.account),
            ("POST", "/account/password", self.change_password),
            ("GET", "/set-password", self.code_form),
            ("POST", "/set-password", self.use_code),
        )

    async def account(self, request: Request) -> Response:
        """Who one is here."""
        return self._account_page(request)

    async def change_password(self, request: Request) -> Response:
        """Set another password; sessions elsewhere end."""
        form, seen = await form_of(request), self.shell.seen(request)
        if form.get("new") != form.get("again"):
            return self._account_page(request, message=_DIFFERENT, status=422)
        try:
            change = PasswordChange(
                session=seen.digest,
                old=form.get("old", ""),
                new=form.get("new", ""),
                caller=self.shell.caller(request),
                form=self.shell.sent(request, form).sent,
            )
            answer = await self.shell.people.change_password(change)
        except InvalidField as error:
            return self._account_page(request, message=error.message, status=422)
        if answer.refusal == "wait":
            message = f"too many attempts: wait {answer.wait_s} s"
            return self._account_page(request, message=message, status=429)
        if answer.refusal:
            message = "the password until now is not right"
            return self._account_page(request, message=message, status=403)
        return self._account_page(request, done="The password is changed; other sessions ended.")

    async def code_form(self, request: Request) -> Response:
        """Ask for a first or a new password, with the one-time code of a link."""
        return await self._code_page(request, request.query_params.get("code", ""))

    async def use_code(self, request: Request) -> Response:
        """Set the password."""
        form = await form_of(request)
        code = form.get("code", "")
        if not self.shell.is_ours(request, form, None):
            return await self._code_page(request, code, form, message=_STALE, status=403)
        if form.get("new") != form.get("again"):
            return await self._code_page(request, code, form, message=_DIFFERENT, status=422)
        try:
            use = CodeUse(
                code=_digest(code),
                password=form.get("new", ""),
                login=form.get("login", "").strip(),
                name=form.get("name", "").strip() or form.get("login", "").strip(),
                caller=self.shell.caller(request),
                form=self.shell.sent(request, form).sent,
            )
            await self.shell.people.use_code(use)
        except (InvalidField, PersonConflict) as error:
            return await self._code_page(request, code, form, message=error.message, status=422)
        return to(f"{LOGIN_PATH}?done=password")

    def _account_page(
        self, request: Request, *, message: str = "", done: str = "", status: int = 200
    ) -> Response:
        seen = self.shell.seen(request)
        shown = {
            **self.shell.frame(request),
            "message": message,
            "done": done,
            "person": seen.person,
            "is_local": seen.person is not None and seen.person.kind is PersonKind.LOCAL,
            "grants": [grant.text for grant in seen.viewer.grants],
            "limits": _LIMITS,
        }
        return self.shell.page("account.html", shown, status=status)

    async def _code_page(
        self,
        request: Request,
        code: str,
        form: Mapping[str, str] | None = None,
        *,
        message: str = "",
        status: int = 200,
    ) -> Response:
        state = await self.shell.people.code_state(_digest(code))
        if not state.is_valid:
            return self.shell.page("code_void.html", {}, status=status if message else 404)
        given = form or {}
        shown = {
            "code": code,
            "login": state.login,
            "is_first": not state.login,
            "typed_login": given.get("login", "")[:128],
            "typed_name": given.get("name", "")[:128],
            "message": message,
            "limits": _LIMITS,
        }
        return self.shell.entry_page(request, "set_password.html", shown, status=status)


def _digest(code: str) -> bytes:
    return digest_of(code[:256].strip().encode("utf-8", "surrogatepass"))
