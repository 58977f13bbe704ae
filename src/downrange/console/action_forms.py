"""Forms of actions: the name of an action -> how its form becomes an action of the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from downrange.console.cluster.actions.dead_letters import ResendDeadLetters
from downrange.console.cluster.actions.groups import AlterGroup, CreateGroup, DeleteGroup
from downrange.console.cluster.actions.messages import DeliverToGroup, SendAgain, SendMessage
from downrange.console.cluster.actions.offsets import CloneOffsets, ResetOffsets, SkipMessages
from downrange.console.cluster.actions.topics import AlterTopic, CreateTopic, DeleteTopic
from downrange.console.rendering import (
    dead_letters_address,
    group_address,
    message_address,
    topic_address,
)
from downrange.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from downrange.console.cluster.actions.action import Action, ActionResult
    from downrange.console.forms import Form


def _create_topic(form: Form) -> Action:
    return CreateTopic(
        topic=form.text("topic"),
        queues=_or(form.number("queues"), 8),
        permission=form.optional("permission") or "rw",
        is_ordered=form.is_on("is_ordered"),
        attributes=form.pairs("attributes"),
        cluster=form.optional("cluster"),
    )


def _alter_topic(form: Form) -> Action:
    return AlterTopic(
        topic=form.text("topic"),
        read_queues=form.number("read_queues"),
        write_queues=form.number("write_queues"),
        permission=form.optional("permission"),
        is_ordered=form.choice("is_ordered"),
        attributes=_attribute_changes(form),
        brokers=form.words("brokers"),
    )


def _attribute_changes(form: Form) -> dict[str, str | None]:
    """Return attributes to set; `name=` without a value removes one."""
    return {name: value or None for name, value in form.pairs("attributes").items()}


def _delete_topic(form: Form) -> Action:
    return DeleteTopic(
        topic=form.text("topic"), typed=form.raw("typed"), cluster=form.optional("cluster")
    )


def _send_message(form: Form) -> Action:
    return SendMessage(
        topic=form.text("topic"),
        body=form.raw("body"),
        tags=form.optional("tags"),
        keys=form.words("keys"),
        properties=form.pairs("properties"),
        sharding_key=form.optional("sharding_key"),
        delay_level=form.number("delay_level"),
        deliver_in=form.decimal("deliver_in"),
    )


def _send_again(form: Form) -> Action:
    return SendAgain(topic=form.text("topic"), message_id=form.text("message_id"))


def _deliver_to_group(form: Form) -> Action:
    return DeliverToGroup(
        group=form.text("group"),
        topic=form.text("topic"),
        message_id=form.text("message_id"),
        client_id=form.optional("client_id"),
    )


def _create_group(form: Form) -> Action:
    return CreateGroup(
        group=form.text("group"),
        retries=_or(form.number("retries"), 16),
        retry_queues=_or(form.number("retry_queues"), 1),
        is_ordered=form.is_on("is_ordered"),
        cluster=form.optional("cluster"),
    )


def _alter_group(form: Form) -> Action:
    return AlterGroup(
        group=form.text("group"),
        is_enabled=form.choice("is_enabled"),
        retries=form.number("retries"),
        retry_queues=form.number("retry_queues"),
        is_ordered=form.choice("is_ordered"),
        cluster=form.optional("cluster"),
    )


def _delete_group(form: Form) -> Action:
    return DeleteGroup(
        group=form.text("group"),
        typed=form.raw("typed"),
        with_topics=form.is_on("with_topics"),
        cluster=form.optional("cluster"),
    )


def _reset_offsets(form: Form) -> Action:
    return ResetOffsets(
        group=form.text("group"),
        topic=form.text("topic"),
        to=form.optional("to"),
        shift=form.number("shift"),
        queue=form.optional("queue"),
    )


def _skip_messages(form: Form) -> Action:
    return SkipMessages(group=form.text("group"), topics=form.words("topics"))


def _clone_offsets(form: Form) -> Action:
    return CloneOffsets(
        source=form.text("source"), group=form.text("group"), topics=form.words("topics")
    )


def _resend_dead_letters(form: Form) -> Action:
    to = form.optional("to") or "topic"
    if to not in ("topic", "retry"):
        raise OptionError(f"to: {to!r} is not topic or retry")
    ids = form.all("id")
    if not ids:
        raise OptionError("id: no dead letter is selected")
    return ResendDeadLetters(
        group=form.text("group"),
        ids=ids,
        to="retry" if to == "retry" else "topic",
        rate=form.decimal("rate"),
        again=form.is_on("again"),
    )


def _or(given: int | None, default: int) -> int:
    return default if given is None else given


#: Name of an action -> how its form is read.
ACTIONS: Final[dict[str, Callable[[Form], Action]]] = {
    CreateTopic.name: _create_topic,
    AlterTopic.name: _alter_topic,
    DeleteTopic.name: _delete_topic,
    SendMessage.name: _send_message,
    SendAgain.name: _send_again,
    DeliverToGroup.name: _deliver_to_group,
    CreateGroup.name: _create_group,
    AlterGroup.name: _alter_group,
    DeleteGroup.name: _delete_group,
    ResetOffsets.name: _reset_offsets,
    SkipMessages.name: _skip_messages,
    CloneOffsets.name: _clone_offsets,
    ResendDeadLetters.name: _resend_dead_letters,
}


def address_after(action: Action, result: ActionResult) -> str:
    """Return the page that shows what an action has changed."""
    match action:
        case DeleteTopic():
            return "/topics"
        case DeleteGroup():
            return "/groups"
        case CreateTopic() | AlterTopic():
            return topic_address(action.topic)
        case SendMessage() | SendAgain():
            new_id = result.values.get("message_id")
            if isinstance(new_id, str) and not _is_delayed(action):
                return message_address(action.topic, new_id)
            return topic_address(action.topic)
        case DeliverToGroup():
            return message_address(action.topic, action.message_id)
        case ResendDeadLetters():
            return dead_letters_address(action.group)
        case _:
            return group_address(action.target)


def _is_delayed(action: SendMessage | SendAgain) -> bool:
    """Return whether a message is not in its topic yet."""
    return isinstance(action, SendMessage) and (
        action.delay_level is not None or action.deliver_in is not None
    )
