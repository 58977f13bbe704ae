# Generated from client/_async/broker_calls.py by scripts/generate_sync.py; do not edit.
"""Calls on brokers: settings, figures, clean-up, permission to be written to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from downrange.client._sync.client_user import ClientUser
from downrange.client.flows.admin import brokers, waiting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from downrange.client.flows.admin.brokers import CleanUp
    from downrange.client.flows.admin.reports import NameServerFacts, TimedMessages


class BrokerCalls(ClientUser):
    """Reads and changes brokers, one by its name or all masters of a cluster."""

    def broker_settings(
        self,
        broker: str | None = None,
        *,
        cluster: str | None = None,
        timeout: float | None = None,
    ) -> dict[str, dict[str, str]]:
        """Return the settings of a broker, or of each one: broker -> name -> value.

        Args:
            broker: Its name; all masters unless given.
            cluster: The cluster, where there are several.
            timeout: For the whole call.

        Raises:
            OptionError: There is no such broker or cluster.
            RocketMQError: A server did not answer.
        """
        core, deadline = self._deadline(timeout)
        flow = brokers.broker_settings(core, broker, cluster=cluster, deadline=deadline)
        return self._client.run(flow)

    def change_broker_settings(
        self,
        changes: Mapping[str, str],
        broker: str | None = None,
        *,
        cluster: str | None = None,
        timeout: float | None = None,
    ) -> dict[str, dict[str, str]]:
        """Change settings of a broker, or of each one, while it runs.

        Apache's brokers ignore names that they do not know; here that is an error.

        Args:
            changes: Name -> value, by the names of Apache's broker.conf.
            broker: Its name; all masters unless given.
            cluster: The cluster, where there are several.
            timeout: For the whole call.

        Returns:
            The settings after the change.

        Raises:
            OptionError: There is no such broker, cluster or setting.
            PartlyDone: Some brokers did it, others failed; names both.
            RocketMQError: No broker did it.
        """
        core, deadline = self._deadline(timeout)
        flow = brokers.change_broker_settings(
            core, changes, broker, cluster=cluster, deadline=deadline
        )
        return self._client.run(flow)

    def broker_figures(
        self,
        broker: str | None = None,
        *,
        cluster: str | None = None,
        timeout: float | None = None,
    ) -> dict[str, dict[str, str]]:
        """Return what a broker, or each one, says about itself: broker -> name -> value.

        Args:
            broker: Its name; all masters unless given.
            cluster: The cluster, where there are several.
            timeout: For the whole call.

        Raises:
            OptionError: There is no such broker or cluster.
            RocketMQError: A server did not answer.
        """
        core, deadline = self._deadline(timeout)
        flow = brokers.broker_figures(core, broker, cluster=cluster, deadline=deadline)
        return self._client.run(flow)

    def clean_up(
        self,
        what: CleanUp,
        broker: str | None = None,
        *,
        cluster: str | None = None,
        timeout: float | None = None,
    ) -> list[str]:
        """Have a broker, or each one, delete what has expired, without waiting for its time.

        Args:
            what: "queues" for queues whose messages have expired, "topics" for queues of topics
                that do not exist, "log" for expired files of the commit log.
            broker: Its name; all masters unless given.
            cluster: The cluster, where there are several.
            timeout: For the whole call.

        Returns:
            The brokers that did it.

        Raises:
            OptionError: There is no such broker, cluster or thing to clean up.
            PartlyDone: Some brokers did it, others failed; names both.
            RocketMQError: No broker did it.
        """
        core, deadline = self._deadline(timeout)
        flow = brokers.clean_up(core, what, broker, cluster=cluster, deadline=deadline)
        return self._client.run(flow)

    def wipe_write_permission(self, broker: str, *, timeout: float | None = None) -> int:
        """Have all name servers announce a broker as read-only, before it is taken away.

        Producers stop to send to it with their next route update. It ends when the broker starts
        again, or with `restore_write_permission`.

        Args:
            broker: Its name.
            timeout: For the whole call.

        Returns:
            How many topics this changes.

        Raises:
            OptionError: There is no such broker.
            PartlyDone: Some name servers did it, others failed; names both.
            RocketMQError: No name server did it.
        """
        core, deadline = self._deadline(timeout)
        flow = brokers.set_writable(core, broker, False, deadline=deadline)
        return self._client.run(flow)

    def restore_write_permission(self, broker: str, *, timeout: float | None = None) -> int:
        """Have all name servers announce a broker as writable again.

        Args:
            broker: Its name.
            timeout: For the whole call.

        Returns:
            How many topics this changes.

        Raises:
            OptionError: There is no such broker.
            PartlyDone: Some name servers did it, others failed; names both.
            RocketMQError: No name server did it.
        """
        core, deadline = self._deadline(timeout)
        flow = brokers.set_writable(core, broker, True, deadline=deadline)
        return self._client.run(flow)

    # ---- what waits --------------------------------------------------------------------------

    def delay_offsets(
        self, *, cluster: str | None = None, timeout: float | None = None
    ) -> dict[str, dict[int, int]]:
        """Return up to which offset each delay level was delivered: broker -> level -> offset.

        The queue of a level in the topic `SCHEDULE_TOPIC_XXXX` is the level minus 1.

        Args:
            cluster: Only of this cluster.
            timeout: For the whole call.

        Raises:
            RocketMQError: A server did not answer.
        """
        core, deadline = self._deadline(timeout)
        flow = waiting.delay_offsets(core, cluster=cluster, deadline=deadline)
        return self._client.run(flow)

    def timed_messages(
        self, *, cluster: str | None = None, timeout: float | None = None
    ) -> dict[str, tuple[TimedMessages, ...]]:
        """Return how many messages wait for a time of their own: broker -> by topic.

        Brokers of 4.9 have no such messages and are left out.

        Args:
            cluster: Only of this cluster.
            timeout: For the whole call.

        Raises:
            RocketMQError: A server did not answer.
        """
        core, deadline = self._deadline(timeout)
        flow = waiting.timed_messages(core, cluster=cluster, deadline=deadline)
        return self._client.run(flow)

    # ---- name servers ------------------------------------------------------------------------

    def name_servers(self, *, timeout: float | None = None) -> list[NameServerFacts]:
        """Return the settings of each of the client's name servers, or why it did not answer.

        Args:
            timeout: For the whole call.
        """
        core, deadline = self._deadline(timeout)
        return self._client.run(brokers.name_servers(core, deadline=deadline))
