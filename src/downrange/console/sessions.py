"""Sessions in cookies, tokens against forged requests, and a limit on failed logins.

Every visitor has a session id in a cookie. The token of a form is a keyed hash of this id, so that
visitors who are not logged in take no memory. A login always makes a new id.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from downrange.console import limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.console.accounts import Visitor

_ID_BYTES: Final = 32
_ID_CHARACTERS: Final = 2 * _ID_BYTES


def cookie_name(port: int) -> str:
    """Return the name of the cookie for a console that listens on a port.

    Browsers send a cookie to all ports of a host, so two consoles need two names.
    """
    return f"downrange_session_{port}"


def new_id() -> str:
    """Return a new session id."""
    return secrets.token_hex(_ID_BYTES)


def is_id(text: str | None) -> bool:
    """Return whether a text may be a session id."""
    return (
        text is not None
        and len(text) == _ID_CHARACTERS
        and all(letter in "0123456789abcdef" for letter in text)
    )


@dataclass(slots=True)
class _Session:
    visitor: Visitor
    begun: float
    used: float


class Sessions:
    """Visitors who are logged in, by session id.

    Args:
        clock: A monotonic clock in seconds.
        key: Key of the tokens; random if not given.
    """

    def __init__(self, clock: Callable[[], float], key: bytes | None = None) -> None:
        self._clock = clock
        self._key = key or secrets.token_bytes(32)
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def token(self, session_id: str) -> str:
        """Return the token that forms of this session carry."""
        return hmac.new(self._key, session_id.encode(), hashlib.sha256).hexdigest()

    def is_token(self, session_id: str, token: str) -> bool:
        """Return whether a form carries the token of this session."""
        return hmac.compare_digest(self.token(session_id).encode(), token.encode(errors="replace"))

    def begin(self, visitor: Visitor) -> str:
        """Log a visitor in; return the new session id."""
        now = self._clock()
        session_id = new_id()
        self._sessions[session_id] = _Session(visitor, now, now)
        while len(self._sessions) > limits.SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return session_id

    def find(self, session_id: str, *, is_use: bool = True) -> Visitor | None:
        """Return who is logged in; None without a login, or when the session has ended.

        Args:
            session_id: The session.
            is_use: Whether the visitor did something, which keeps the session alive.
        """
        session = self._sessions.get(session_id)
        if session is None:
            return None
        now = self._clock()
        is_over = now - session.used > limits.SESSION_IDLE_SECONDS
        if is_over or now - session.begun > limits.SESSION_SECONDS_MAX:
            del self._sessions[session_id]
            return None
        if is_use:
            session.used = now
            self._sessions.move_to_end(session_id)
        return session.visitor

    def end(self, session_id: str) -> None:
        """Log out."""
        self._sessions.pop(session_id, None)


class LoginLimit:
    """Counts failed logins in a window of time, per address and of all.

    Args:
        clock: A monotonic clock in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        self._all: deque[float] = deque(maxlen=limits.LOGIN_FAILURES_OF_ALL_MAX)

    def wait(self, address: str) -> float:
        """Return the seconds until this address may try again; 0 if it may."""
        return max(
            self._wait(self._failures.get(address, deque()), limits.LOGIN_FAILURES_MAX),
            self._wait(self._all, limits.LOGIN_FAILURES_OF_ALL_MAX),
        )

    def add_failure(self, address: str) -> None:
        """Note a failed login."""
        now = self._clock()
        times = self._failures.setdefault(address, deque(maxlen=limits.LOGIN_FAILURES_MAX))
        times.append(now)
        self._all.append(now)
        self._failures.move_to_end(address)
        while len(self._failures) > limits.LOGIN_ADDRESSES_MAX:
            self._failures.popitem(last=False)

    def clear(self, address: str) -> None:
        """Forget the failures of an address, after a login."""
        self._failures.pop(address, None)

    def _wait(self, times: deque[float], count: int) -> float:
        if len(times) < count:
            return 0.0
        return max(0.0, times[0] + limits.LOGIN_WINDOW_SECONDS - self._clock())
