"""Which messages a consumer gets: all, those with certain tags, or those that match SQL92.

A filter comes with the request (`filter_of_expression`) or from the subscription in the group's
last heartbeat (`filter_of_subscription`). Checked in Apache's order (Java: PullMessageProcessor).
Tags are compared by hash, so a consumer compares their text again.

Other than in Apache, a request with an SQL92 expression that cannot be read is refused. Apache
refuses it in a pop; in a pull it returns every message. A list of tags that is longer than such an
expression may be is refused, too: it is read again for each pull. Apache has no limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.errors import InvalidSql
from downrange.filters.grammar import EXPRESSION_MAX
from downrange.server.outputs import refusal
from downrange.wire.codes import ResponseCode
from downrange.wire.hashes import tag_hash
from downrange.wire.system_names import FAQ

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from downrange.server.broker.record_scan import Condition
    from downrange.server.broker.state import BrokerState
    from downrange.wire.bodies import GroupConfig
    from downrange.wire.command import Command

SQL: Final = "SQL92"
#: The names of the kind that filters by tags; without a kind, it is this one.
_TAG_KINDS: Final = (None, "", "TAG")
_FORBIDDEN_BROADCAST: Final = "4"
_PARSE_FAILED: Final = "parse the consumer's subscription failed"


class MessageFilter(NamedTuple):
    """Which messages of a queue are delivered.

    Attributes:
        hashes: The hashes of tags that match; None: not filtered by tags.
        sql: The expression, or another condition, that must be true; None: not filtered by
            properties.
    """

    hashes: frozenset[int] | None = None
    sql: Condition | None = None

    @property
    def is_all(self) -> bool:
        """Whether every message matches."""
        return self.hashes is None and self.sql is None

    def matches(self, tag_hash: int, read_properties: Callable[[], Mapping[str, str]]) -> bool:
        """Whether a message matches.

        Args:
            tag_hash: The tag hash of its queue unit.
            read_properties: Returns its properties; only called if they are needed.
        """
        if self.sql is not None:
            return self.sql.matches(read_properties())
        return self.hashes is None or tag_hash in self.hashes


EVERYTHING: Final = MessageFilter()


def filter_of_expression(
    state: BrokerState, expression: str | None, kind: str | None
) -> MessageFilter | Command:
    """Return the filter that a request brings along, or the refusal.

    Args:
        state: The broker.
        expression: Tags joined by "||", "*" for all; or an SQL92 expression.
        kind: "TAG", "SQL92", or None for tags.

    Returns:
        The filter; or a refusal: 23 for an expression that cannot be read, 1 if SQL92 filters are
        switched off.
    """
    if kind in _TAG_KINDS:
        return _filter_of_tags(expression)
    if not expression:
        return refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, _PARSE_FAILED)
    if not state.options.is_sql_enabled:
        return refuse_kind(kind)
    return _filter_of_sql(state, expression, kind)


def filter_of_subscription(
    state: BrokerState, group: GroupConfig, topic: str, sub_version: int
) -> MessageFilter | Command:
    """Return the filter of a group's subscription to a topic, or the refusal.

    Args:
        state: The broker.
        group: The group's settings.
        topic: The topic.
        sub_version: The version of the subscription that the client has.

    Returns:
        The filter; or a refusal: 24 if there is no subscription, 25 if it is older than the
        client's, 16 if the group may not broadcast, 27 and 28 for the same two reasons if the SQL92
        expression is concerned, 1 if SQL92 filters are switched off.
    """
    name = group.group_name
    members = state.clients.consumer_group(name)
    if members is None:
        remark = f"the consumer's group info not exist{FAQ}"
        return refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
    if not group.consume_broadcast_enable and members.is_broadcasting:
        remark = f"the consumer group[{name}] can not consume by broadcast way"
        command = refusal(ResponseCode.NO_PERMISSION, remark)
        command.fields = {"forbiddenType": _FORBIDDEN_BROADCAST}
        return command
    subscription = members.subscription(topic)
    if subscription is None:
        remark = f"the consumer's subscription not exist{FAQ}"
        return refusal(ResponseCode.SUBSCRIPTION_NOT_EXIST, remark)
    if subscription.sub_version < sub_version:
        remark = "the consumer's subscription not latest"
        return refusal(ResponseCode.SUBSCRIPTION_NOT_LATEST, remark)
    if subscription.expression_type in _TAG_KINDS:
        return _filter_of_tags(subscription.sub_string)
    known = state.filters.get(topic, name)
    if known is None:
        remark = "The broker's consumer filter data is not exist!Your expression may be wrong!"
        return refusal(ResponseCode.FILTER_DATA_NOT_EXIST, remark)
    if known.client_version < sub_version:
        remark = "the consumer's consumer filter data not latest"
        return refusal(ResponseCode.FILTER_DATA_NOT_LATEST, remark)
    if not state.options.is_sql_enabled:
        return refuse_kind(subscription.expression_type)
    return _filter_of_sql(state, known.expression, known.expression_type)


def check_filter(state: BrokerState, expression: str, kind: str) -> Command | None:
    """Return the refusal of a subscription that a client wants to have checked, or None.

    A list of tags is refused only for its length. The remark about a wrong expression is our own;
    in Apache it is a Java exception with all tokens that would be right.
    """
    if kind in _TAG_KINDS:
        if len(expression) <= EXPRESSION_MAX:
            return None
        remark = f"the tags have more than {EXPRESSION_MAX} characters"
        return refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)
    if not state.options.is_sql_enabled:
        return refuse_kind(kind)
    if kind != SQL:
        remark = f"The broker does not support consumer to filter message by {kind}"
        return refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark)
    try:
        state.expressions.get(expression)
    except InvalidSql as error:
        return refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error))
    return None


def refuse_kind(kind: str | None) -> Command:
    """Return the refusal of expressions of a kind, in Apache's words."""
    remark = f"The broker does not support consumer to filter message by {kind}"
    return refusal(ResponseCode.SYSTEM_ERROR, remark)


def _filter_of_tags(expression: str | None) -> MessageFilter | Command:
    if not expression or expression == "*":
        return EVERYTHING
    if len(expression) > EXPRESSION_MAX:
        return refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, _PARSE_FAILED)
    tags = [tag.strip() for tag in expression.split("||")]
    hashes = frozenset([tag_hash(tag) for tag in tags if tag])
    if not hashes:
        return refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, _PARSE_FAILED)
    return MessageFilter(hashes)


def _filter_of_sql(
    state: BrokerState, expression: str, kind: str | None
) -> MessageFilter | Command:
    if kind != SQL:
        return refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, _PARSE_FAILED)
    try:
        return MessageFilter(None, state.expressions.get(expression))
    except InvalidSql:
        return refusal(ResponseCode.SUBSCRIPTION_PARSE_FAILED, _PARSE_FAILED)
