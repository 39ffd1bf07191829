"""Characters drawn from a seeded source."""

from __future__ import annotations

import random
import string
from collections.abc import Callable

Make = Callable[[random.Random], str]

DIGITS = string.digits
ALNUM = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
URL_SAFE = ALNUM + "-_"
STANDARD = ALNUM + "+/"


def draw(rng: random.Random, alphabet: str, size: int) -> str:
    return "".join(rng.choice(alphabet) for _ in range(size))
