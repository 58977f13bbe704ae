"""The errors of the console's part that asks the cluster, beside those of `downrange.errors`.

    RocketMQError
    ├── ClusterGone        no server of the cluster answers; says since when
    ├── PageTooSlow        the cluster answers, but not in the time of a page
    ├── ActionTooSlow      an action did not end in its time; a part of it may have been done
    ├── TooManyViewers     a limit on tails or viewers is reached
    ├── NotConfirmed       a name that must be typed in does not match
    ├── NoSuchBroker       no broker of this name is known
    ├── NoSuchMember       no member of a group has this client id
    └── NotABroker         the id of a message names a server that is not a broker of the topic

Input that is wrong raises `OptionError`. Names that do not exist raise `RouteNotFound` (topics),
`GroupNotFound` and `NotFound` (messages).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.errors import OptionError, RocketMQError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime


class ClusterGone(RocketMQError):
    """The cluster does not answer.

    Attributes:
        name_servers: The addresses that were asked.
        since: Since when; None when it has never answered.
        problem: Why.
    """

    def __init__(self, name_servers: tuple[str, ...], since: datetime | None, problem: str) -> None:
        self.name_servers = name_servers
        self.since = since
        self.problem = problem
        when = "" if since is None else f" since {since:%Y-%m-%d %H:%M:%S} UTC"
        super().__init__(
            f"the cluster at {', '.join(name_servers)} does not answer{when}: {problem}"
        )


class PageTooSlow(RocketMQError):
    """The cluster answers, but not all of a page in its time.

    Attributes:
        seconds: The time.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(
            f"the cluster did not answer everything in {seconds:g} s; ask for fewer rows, or see "
            "the page of brokers"
        )


class ActionTooSlow(RocketMQError):
    """An action did not end in its time. A part of it may have been done.

    Attributes:
        seconds: The time.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(
            f"the action did not end in {seconds:g} s; a part of it may have been done: look at "
            "the page of what it changes before you repeat it"
        )


class TooManyViewers(RocketMQError):
    """A limit on tails or viewers is reached; close another one, or try again later."""


class NotConfirmed(OptionError):
    """The name that must be typed in to confirm an action does not match."""


class NoSuchBroker(OptionError):
    """No broker of this name is known.

    Attributes:
        broker: The name.
        known: The names of brokers that are known.
    """

    def __init__(self, broker: str, known: Iterable[str]) -> None:
        self.broker = broker
        self.known = tuple(sorted(known))
        others = f"known are {', '.join(self.known)}" if self.known else "none is known"
        super().__init__(f"there is no broker {broker!r}; {others}")


class NoSuchMember(OptionError):
    """No member of a group has this client id.

    Attributes:
        group: The group.
        client_id: The id.
    """

    def __init__(self, group: str, client_id: str) -> None:
        self.group = group
        self.client_id = client_id
        super().__init__(
            f"group {group!r} has no member {client_id!r}; the page of the group shows its members"
        )


class NotABroker(OptionError):
    """The id of a message names a server that is not a broker of the topic; it is not asked.

    Attributes:
        message_id: The id.
        address: The server that it names.
        topic: The topic.
    """

    def __init__(self, message_id: str, address: str, topic: str) -> None:
        self.message_id = message_id
        self.address = address
        self.topic = topic
        super().__init__(
            f"id {message_id} names the server {address}, which is not a broker of topic "
            f"{topic!r}; look for the message by its key or time"
        )
