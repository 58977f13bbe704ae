"""Clients: connected producers and consumers of the whole cluster."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from downrange.console.cluster import limits
from downrange.console.cluster.listing import page_of
from downrange.console.cluster.pages.clients import ClientRow, ClientsPage
from downrange.console.cluster.pages.common import Note
from downrange.errors import RocketMQError, TransportError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from downrange import AsyncAdmin, GroupSummary, Member
    from downrange.console.cluster.pages.common import ListRequest
    from downrange.console.cluster.poller import Poller


async def clients_page(poller: Poller, request: ListRequest) -> ClientsPage:
    """Return a page of the connected clients.

    Raises:
        OptionError: The request is wrong.
        RocketMQError: A server did not answer.
    """
    clients, notes = await poller.clients.get()
    chosen, paging = page_of(
        clients,
        request,
        {
            "name": lambda row: (row.client_id, row.role, row.group),
            "role": lambda row: row.role,
            "group": lambda row: row.group,
            "language": lambda row: row.language,
            "version": lambda row: row.version,
            "address": lambda row: row.address,
        },
        lambda row: (row.client_id, row.group, row.address),
    )
    return ClientsPage(
        paging=paging,
        rows=tuple(chosen),
        producers=sum(row.role == "producer" for row in clients),
        consumers=sum(row.role == "consumer" for row in clients),
        notes=notes,
    )


async def list_clients(
    admin: AsyncAdmin, groups: Iterable[GroupSummary]
) -> tuple[list[ClientRow], tuple[Note, ...]]:
    """Return all connected clients; each group of consumers costs a request to each broker.

    Raises:
        RocketMQError: No server answered.
    """
    notes: list[Note] = []
    rows: list[ClientRow] = []
    try:
        for group, members in (await admin.list_producers()).items():
            rows += [_row("producer", group, each) for each in members]
    except TransportError:
        raise
    except RocketMQError as error:
        text = f"producers are not known: {error.brief}"
        values: dict[str, str | int | float] = {"problem": error.brief}
        notes.append(Note(code="producers-not-told", text=text, values=values))
    names = [group.group for group in groups]
    if len(names) > limits.CLIENT_GROUPS_MAX:
        text = f"members of {limits.CLIENT_GROUPS_MAX} of {len(names)} groups are listed"
        values = {"asked": limits.CLIENT_GROUPS_MAX, "groups": len(names)}
        notes.append(Note(code="groups-limited", text=text, values=values))
    gate = asyncio.Semaphore(limits.ROWS_AT_ONCE)

    async def read(group: str) -> list[ClientRow]:
        async with gate:
            found = await admin.group_members(group)
        return [_row("consumer", group, each) for each in found.members]

    for part in await asyncio.gather(*map(read, names[: limits.CLIENT_GROUPS_MAX])):
        rows += part
    return rows, tuple(notes)


def _row(role: str, group: str, member: Member) -> ClientRow:
    return ClientRow(
        client_id=member.client_id,
        role=role,
        group=group,
        address=member.address,
        language=member.language,
        version=member.version,
        brokers=member.brokers,
    )
