"""Keys and tokens of clouds and vendors, by the prefixes that these publish.

Each row was written from the vendor's own documentation of its form, so that others' keys can be
recognised: a prefix, an alphabet and a length. What is random in a key must look random, too: by
Shannon's entropy per character, which a placeholder does not reach.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from gateway.auth.keys import parse_key_id
from gateway.detect.budget import Budget
from gateway.detect.hits import ALPHANUMERIC, Find, Group, Hit, Rule
from gateway.detect.linear import Pattern
from gateway.detect.published import EXAMPLE_WORDS

ACCESS_TOKEN = "access_token"  # noqa: S105  # a detector's name
JWT = "jwt"
FAREWAY_KEY = "fareway_key"

_HEX_BITS_MIN = 2.6
_TEXT_BITS_MIN = 3.2


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenForm:
    """How a vendor's keys look.

    Attributes:
        kind: Its name.
        prefix: RE2 pattern of how it begins; enough of it to be rare in other text.
        rest: RE2 pattern of what follows.
        bits_min: Least entropy per character of the whole.
        sign: RE2 pattern of what no such token is without, which is looked for first.
    """

    kind: str
    prefix: str
    rest: str
    bits_min: float
    sign: str


def _form(
    kind: str, prefix: str, rest: str, bits_min: float = _TEXT_BITS_MIN, sign: str = ""
) -> TokenForm:
    sign = sign or f"(?:{prefix})[A-Za-z0-9_+/.%\\-]{{8}}"
    return TokenForm(kind=kind, prefix=prefix, rest=rest, bits_min=bits_min, sign=sign)


_W = r"[A-Za-z0-9_\-]"
_A = r"[A-Za-z0-9]"
_X = r"[0-9a-f]"

FORMS: tuple[TokenForm, ...] = (
    _form("aws_access_key", r"(?:AKIA|ASIA)", r"[A-Z2-7]{16}", 2.8),
    _form("aws_bedrock_key", r"ABSK", r"[A-Za-z0-9+/]{100,}={0,2}"),
    _form("google_api_key", r"AIza", _W + "{35}"),
    _form("google_oauth_secret", r"GOCSPX-", _W + "{28}"),
    _form("google_access_token", r"ya29\.", _W + "{30,}"),
    _form("azure_storage_key", r"(?i)AccountKey=", r"[A-Za-z0-9+/]{86}=="),
    _form(
        "azure_client_secret", r"[A-Za-z0-9_~.\-]{3}[0-9]Q~", r"[A-Za-z0-9_~.\-]{31,34}",
        sign=r"[0-9]Q~",
    ),
    _form("azure_sas", r"[?&]sig=", r"[A-Za-z0-9%+/]{43,60}(?:%3D|=)"),
    _form("github_token", r"gh[pousr]_", _A + "{36}"),
    _form("github_pat", r"github_pat_", _A + "{22}_" + _A + "{59}"),
    _form("gitlab_token", r"gl(?:pat|ptt|dt|rt|soat|ft|cbt|imt|agent)-", _W + "{20,}"),
    _form("slack_token", r"xox[abeoprs]-", r"[0-9]+-[A-Za-z0-9\-]{16,}"),
    _form("slack_app_token", r"xapp-[0-9]-", r"[A-Z0-9]+-[0-9]+-[a-f0-9]{32,}", 2.8),
    _form("slack_webhook", r"hooks\.slack\.com/[a-z]{8,9}/", r"T[A-Z0-9]{8,}/[A-Za-z0-9/]{20,}"),
    _form("stripe_key", r"[sr]k_(?:live|test)_", _A + "{16,}"),
    _form("stripe_webhook_secret", r"whsec_", r"[A-Za-z0-9+/=]{32,}"),
    _form("openai_key", r"sk-(?:proj|svcacct|admin|None)-", _W + "{40,}"),
    _form("openai_user_key", r"sk-", _A + "{20}T3BlbkFJ" + _A + "{20}", sign="T3BlbkFJ"),
    _form("anthropic_key", r"sk-ant-", r"(?:api|admin|oat|sid)[0-9]{2}-" + _W + "{80,}"),
    _form("openrouter_key", r"sk-or-v1-", _X + "{64}", _HEX_BITS_MIN),
    _form("groq_key", r"gsk_", _A + "{52}"),
    _form("huggingface_token", r"hf_", r"[A-Za-z]{34}"),
    _form("huggingface_org_token", r"api_org_", r"[A-Za-z]{34}"),
    _form("replicate_token", r"r8_", _A + "{37}"),
    _form("fireworks_key", r"fw_", _A + "{22,24}", 3.6),
    _form("together_key", r"tgp_v1_", _W + "{43}"),
    _form("cerebras_key", r"csk-", r"[a-z0-9]{48}"),
    _form("xai_key", r"xai-", _A + "{80}"),
    _form("perplexity_key", r"pplx-", _A + "{48}"),
    _form("nvidia_key", r"nvapi-", _W + "{60,}"),
    _form("npm_token", r"npm_", _A + "{36}"),
    _form("pypi_token", r"pypi-AgE(?:IcHlwaS5vcmc|NdGVzdC5weXBpLm9yZ)", _W + "{50,}"),
    _form("rubygems_key", r"rubygems_", _X + "{48}", _HEX_BITS_MIN),
    _form("twilio_key", r"SK", _X + "{32}", _HEX_BITS_MIN),
    _form("sendgrid_key", r"SG\.", _W + r"{22}\." + _W + "{43}"),
    _form("mailgun_key", r"key-", _X + "{32}", _HEX_BITS_MIN),
    _form("mailchimp_key", _X + r"{32}-us", r"[0-9]{1,2}", 2.6, sign=r"[0-9a-f]-us[0-9]"),
    _form("telegram_bot_token", r"[0-9]{8,10}:AA", _W + "{33}", sign=r"[0-9]:AA" + _W + "{8}"),
    _form(
        "discord_token", r"[MNO]" + _A + r"{23,27}\.", _W + r"{6}\." + _W + "{27,40}",
        sign=r"\." + _W + r"{6}\." + _W + "{8}",
    ),
    _form("digitalocean_token", r"do[opr]_v1_", _X + "{64}", _HEX_BITS_MIN),
    _form("shopify_token", r"shp(?:at|ca|pa|ss)_", r"[0-9a-fA-F]{32}", _HEX_BITS_MIN),
    _form("square_token", r"sq0(?:atp|csp|idp)-", _W + "{22,43}"),
    _form("databricks_token", r"dapi", _X + "{32}", _HEX_BITS_MIN),
    _form("docker_token", r"dckr_(?:pat|oat)_", _W + "{27,32}"),
    _form("vault_token", r"hv[sbr]\.", _W + "{24,}"),
    _form("terraform_token", _A + r"{14}\.atlasv1\.", _W + "{60,}", sign=r"\.atlasv1\."),
    _form("new_relic_key", r"NRAK-", r"[A-Z0-9]{27}"),
    _form("grafana_token", r"gl(?:sa|c)_", r"[A-Za-z0-9+/=]{32,}(?:_[0-9a-f]{8})?"),
    _form("linear_key", r"lin_api_", _A + "{40}"),
    _form("notion_token", r"ntn_", _A + "{40,}"),
    _form("postman_key", r"PMAK-", _X + "{24}-" + _X + "{34}", _HEX_BITS_MIN),
    _form("doppler_token", r"dp\.(?:pt|st|sa|ct)\.", r"(?:[a-z0-9_\-]+\.)?" + _A + "{40,}"),
    _form("planetscale_token", r"pscale_(?:tkn|pw|oauth)_", r"[A-Za-z0-9_.\-]{32,}"),
    _form("atlassian_token", r"ATATT3", r"[A-Za-z0-9_\-=]{60,}"),
    _form("supabase_token", r"sb[pv]_(?:v0_)?", _X + "{40}", _HEX_BITS_MIN),
    _form("sentry_token", r"sntry[su]_", r"[A-Za-z0-9+/=_]{60,}"),
    _form("figma_token", r"figd_", _W + "{40}"),
    _form("airtable_token", r"pat" + _A + r"{14}\.", _X + "{64}", _HEX_BITS_MIN),
    _form("pulumi_token", r"pul-", _X + "{40}", _HEX_BITS_MIN),
)  # fmt: skip
"""Sources: the vendors' pages on their keys and on secret scanning, November 2026."""

_AWS_WORDS = r"(?i)aws.{0,16}(?:secret|sk)"
_AWS_SECRET = Pattern(
    r"(?i:aws)[A-Za-z_\-. ]{0,16}(?i:secret|sk)[A-Za-z_\-. ]{0,24}"
    r"[\x7f'\"=:, ]{1,8}([A-Za-z0-9/+]{40})"
)
_AWS_SECRET_BITS_MIN = 4.0

_JWT_START = r"eyJ[A-Za-z0-9_\-]{8}"
_JWT = Pattern(r"eyJ[A-Za-z0-9_\-]{8,}={0,2}\.[A-Za-z0-9_\-]{2,}={0,2}\.[A-Za-z0-9_\-.]*")
_JWT_HEADER_CHARS_MAX = 4096
_JWT_SUBJECT_OF_EXAMPLE = b"eyJzdWIiOiIxMjM0NTY3ODkwI"  # the payload of jwt.io's examples
_JWT_SIGNATURE_CHARS_MIN = 16

_KEY_START = r"fw_(?:live|test)_[a-z2-7]{12}_"
_KEY = Pattern(_KEY_START + r"[0-9A-Za-z]{43}_[0-9A-Za-z]{6}")


def entropy_bits(text: bytes) -> float:
    """Shannon's entropy of the characters of a text, in bits per character."""
    size = len(text)
    return -sum(n / size * math.log2(n / size) for n in Counter(text).values())


def is_random(text: bytes, bits_min: float) -> bool:
    """Whether a token may have been drawn at random: neither an example nor a placeholder."""
    if entropy_bits(text) < bits_min:
        return False
    lower = text.lower()
    return not any(word in lower for word in EXAMPLE_WORDS)


def _finder(form: TokenForm) -> Find:
    whole = Pattern(f"(?:{form.prefix})(?:{form.rest})")

    def find(text: bytes, budget: Budget) -> Iterator[Hit]:
        for start, end in whole.spans(text):
            budget.note_candidate()
            if _is_alone(text, start, end) and is_random(text[start:end], form.bits_min):
                yield Hit(ACCESS_TOKEN, form.kind, start, end)

    return find


def _is_alone(text: bytes, start: int, end: int) -> bool:
    """Whether a token is one of its own; a sign may stand before it, as in `?sig=` or `_`."""
    if start and text[start - 1] in ALPHANUMERIC and text[start] in ALPHANUMERIC:
        return False
    return end >= len(text) or text[end] not in ALPHANUMERIC


def find_aws_secrets(text: bytes, budget: Budget) -> Iterator[Hit]:
    """AWS' secret keys, which have no prefix: forty characters behind the words that name them."""
    for start, end in _AWS_SECRET.spans(text):
        budget.note_candidate()
        if end < len(text) and (text[end] in ALPHANUMERIC or text[end] in b"/+="):
            continue
        if is_random(text[start:end], _AWS_SECRET_BITS_MIN):
            yield Hit(ACCESS_TOKEN, "aws_secret_key", start, end)


def find_jwts(text: bytes, budget: Budget) -> Iterator[Hit]:
    """JSON Web Tokens whose header says how they are signed or encrypted."""
    for start, end in _JWT.spans(text):
        budget.note_candidate()
        if start and text[start - 1] in ALPHANUMERIC:
            continue
        header, payload, *rest = text[start:end].rstrip(b".").split(b".")
        if payload.startswith(_JWT_SUBJECT_OF_EXAMPLE):
            continue
        if sum(map(len, rest)) >= _JWT_SIGNATURE_CHARS_MIN and is_jose_header(header):
            yield Hit(JWT, JWT, start, end)


class _JoseHeader(msgspec.Struct):
    alg: str


_decode_header: Callable[[bytes], _JoseHeader] = msgspec.json.Decoder(_JoseHeader).decode


def is_jose_header(text: bytes) -> bool:
    """Whether base64url text is the header of a token (RFC 7515, section 4)."""
    if len(text) > _JWT_HEADER_CHARS_MAX:
        return False
    try:
        decoded = base64.urlsafe_b64decode(text.rstrip(b"=") + b"==")
        return _decode_header(decoded).alg != ""
    except (binascii.Error, msgspec.DecodeError, UnicodeDecodeError):
        return False


def find_own_keys(text: bytes, budget: Budget) -> Iterator[Hit]:
    """Fareway's own keys, whose checksum leaves no doubt."""
    for start, end in _KEY.spans(text):
        budget.note_candidate()
        if parse_key_id(text[start:end]) is not None:
            yield Hit(FAREWAY_KEY, FAREWAY_KEY, start, end)


RULES: tuple[Rule, ...] = (
    *(Rule(group=Group.TOKENS, prefilters=(form.sign,), find=_finder(form)) for form in FORMS),
    Rule(group=Group.TOKENS, prefilters=(_AWS_WORDS,), find=find_aws_secrets),
    Rule(group=Group.TOKENS, prefilters=(_JWT_START,), find=find_jwts),
    Rule(group=Group.TOKENS, prefilters=(_KEY_START,), find=find_own_keys),
)
