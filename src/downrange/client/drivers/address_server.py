"""Fetches name server addresses over HTTP from an address server, for clients without addresses.

One rule: the result is a list of valid addresses, or an error that names the URL. The Java client
asks a fixed host of its vendor by default; here the URL must be given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.addresses import split_address
from downrange.errors import NoNameServer, OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The address server answers with one line; a longer answer is cut off.
_ANSWER_BYTES_MAX: Final = 65_536
_HEADERS: Final[Mapping[str, str]] = {"User-Agent": "downrange", "Accept": "text/plain, */*"}


def fetch_name_servers(url: str, unit: str | None, timeout: float) -> list[str]:
    """Fetch the addresses; blocks this thread.

    Args:
        url: The address server's page, `http://…` or `https://…`.
        unit: The client's unit, which may have its own name servers.
        timeout: How long to wait for data from the server.

    Returns:
        "host:port" of each name server, in the server's order, without duplicates.

    Raises:
        NoNameServer: The server did not answer, or its answer has no valid address.
    """
    asked = f"{url}-{unit}?nofix=1" if unit else url
    lines = _get(asked, timeout).strip().splitlines()
    addresses = [part.strip() for part in lines[0].split(";")] if lines else []
    addresses = list(dict.fromkeys(address for address in addresses if address))
    if not addresses:
        raise NoNameServer(f"{asked} answered, but named no name server")
    for address in addresses:
        try:
            split_address(address)
        except OptionError as error:
            problem = f"{asked} should name name servers, host:port;host:port, but {error}"
            raise NoNameServer(problem) from error
    return addresses


def _get(url: str, timeout: float) -> str:
    # Imported here: most clients need no address server, and these imports double the start time.
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import ProxyHandler, Request, build_opener

    opener = build_opener(ProxyHandler({}))  # ignores the proxies of the environment
    try:
        with opener.open(Request(url, headers=dict(_HEADERS)), timeout=timeout) as answer:
            body: bytes = answer.read(_ANSWER_BYTES_MAX)
    except HTTPError as error:
        error.close()
        raise NoNameServer(f"{url} answered with HTTP status {error.code}") from error
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        problem = f"no answer within {timeout:g} s" if _is_late(reason) else str(reason)
        raise NoNameServer(f"{url} cannot be asked for name servers: {problem}") from error
    return body.decode("utf-8", errors="replace")


def _is_late(reason: object) -> bool:
    return isinstance(reason, TimeoutError)
