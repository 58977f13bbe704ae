"""Name server addresses from an address server, over HTTP, for clients that were given none.

One rule: the answer is a list of addresses that can be used as they are, or an error that names the
URL. Java's client asks a fixed host of its makers by default; here somebody names the URL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.addresses import split_address
from downrange.errors import NoNameServer, OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The address server answers with one line; whatever is longer than this is not it.
_ANSWER_BYTES_MAX: Final = 65_536
_HEADERS: Final[Mapping[str, str]] = {"User-Agent": "downrange", "Accept": "text/plain, */*"}


def fetch_name_servers(url: str, unit: str | None, timeout: float) -> list[str]:
    """Ask an address server, and wait for it in this thread.

    Args:
        url: The address server's page, `http://…` or `https://…`.
        unit: The client's unit, which may have name servers of its own.
        timeout: How long the server may keep silent.

    Returns:
        "host:port" of each name server, in the server's order, each once.

    Raises:
        NoNameServer: There was no answer, or no address in it; the text names the URL.
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
    # Most clients never come here, and these take as long to import as all the rest of a client.
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import ProxyHandler, Request, build_opener

    opener = build_opener(ProxyHandler({}))  # without the proxies of the environment
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
