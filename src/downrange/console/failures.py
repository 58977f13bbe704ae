"""Which HTTP status an error has, and which error a visitor sees when access is denied."""

from __future__ import annotations

from typing import Final

from downrange.console.cluster.problems import (
    ActionTooSlow,
    ClusterGone,
    NoSuchBroker,
    NoSuchMember,
    TooManyViewers,
)
from downrange.errors import (
    GroupNotFound,
    MalformedId,
    NoPermission,
    NotFound,
    OptionError,
    RocketMQError,
    RouteNotFound,
    SendNotPermitted,
    TopicNotFound,
    TransportError,
)
from downrange.wire.codes import ResponseCode


class Forbidden(RocketMQError):
    """The visitor may not do this; says which right is missing."""


class PageNotFound(RocketMQError):
    """There is no such page."""


class LoginNeeded(RocketMQError):
    """The visitor is not logged in, or not any more."""


class ForgedRequest(RocketMQError):
    """A form has no valid token: another site made it, or it is older than the console."""


class UnreadableForm(OptionError):
    """The body of a request cannot be read as a form, so its token cannot be checked."""


#: Error -> status; the first one that fits.
_STATUS: Final = (
    (LoginNeeded, 401),
    (ForgedRequest, 403),
    (Forbidden, 403),
    (NoPermission, 403),
    (SendNotPermitted, 403),
    (PageNotFound, 404),
    (NoSuchBroker, 404),
    (NoSuchMember, 404),
    (RouteNotFound, 404),
    (GroupNotFound, 404),
    (NotFound, 404),
    (TopicNotFound, 404),
    (OptionError, 400),
    (MalformedId, 400),
    (TooManyViewers, 429),
    (ClusterGone, 503),
    (ActionTooSlow, 504),
    (TransportError, 504),
)

#: With these codes a broker refuses what the visitor has given, also in the errors of a send.
_WRONG_VALUE: Final = (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER)


def status_of(error: RocketMQError) -> int:
    """Return the status of a response that reports an error; 502 if a server refused."""
    other = 400 if error.code in _WRONG_VALUE else 502
    return next((status for kind, status in _STATUS if isinstance(error, kind)), other)
