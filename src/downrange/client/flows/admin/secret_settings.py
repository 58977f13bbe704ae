"""Which settings of brokers and name servers may hold a secret. Pure.

The value counts, too: Apache's 5.x have the password of their administrator in the value of
`initAuthenticationUser`, whose name says nothing of it.
"""

from __future__ import annotations

import re
from typing import Final

_SECRET: Final = re.compile(
    r"secret|passw(or)?d|passphrase|token|credential|access.?key|private.?key|signature", re.I
)


def without_secret(name: str, value: str, mark: str) -> str:
    """Return the value of a setting, or a mark if its name or its value may be about a secret."""
    is_secret = value and (_SECRET.search(name) or _SECRET.search(value))
    return mark if is_secret else value
