"""Access-key signatures (ACL version 1), as brokers of 4.9 and 5.x check them.

The signature covers the values of all fields, ordered by name, then the body; the field `Signature`
itself is left out. A field that is added after signing makes the signature invalid.
"""

from __future__ import annotations

import hmac
from base64 import b64encode
from typing import TYPE_CHECKING, Final

from downrange.errors import Unencodable
from downrange.wire.codes import ReleaseVersion

if TYPE_CHECKING:
    from collections.abc import Mapping

    from downrange.wire.command import Command

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
#: A 4.9 broker never signs this field, a 5.x broker signs it for senders newer than 4.9.3.
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"


def signature(
    fields: Mapping[str, str],
    body: bytes,
    secret_key: str,
    *,
    with_unique_key_query: bool = False,
) -> str:
    """Return the signature of a command's fields and body.

    Args:
        fields: The command's fields; `Signature` may be among them.
        body: Its body.
        secret_key: The account's secret.
        with_unique_key_query: Whether to sign that field, too, as clients of 5.x do.

    Raises:
        Unencodable: A value contains half a surrogate pair.
    """
    unsigned = (SIGNATURE,) if with_unique_key_query else (SIGNATURE, UNIQUE_KEY_QUERY)
    values = [fields[name] for name in sorted(fields) if name not in unsigned]
    try:
        content = "".join(values).encode() + body
    except UnicodeEncodeError as error:
        raise Unencodable("signed fields", "half a surrogate pair") from error
    return b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode()


def sign(
    command: Command, access_key: str, secret_key: str, security_token: str | None = None
) -> None:
    """Add the access key and the signature to a command's fields.

    A query by unique key is sent as release 4.9.3: only then do brokers of 4.9 and of 5.x leave out
    the same field.
    """
    fields = command.fields
    fields[ACCESS_KEY] = access_key
    if security_token is not None:
        fields[SECURITY_TOKEN] = security_token
    if UNIQUE_KEY_QUERY in fields:
        command.version = min(command.version, ReleaseVersion.V4_9_3)
    fields[SIGNATURE] = signature(fields, command.body, secret_key)
