"""Brokers and name servers: what they say about themselves, settings, disks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from downrange.client.flows.admin.secret_settings import without_secret
from downrange.console.cluster.pages.brokers import (
    BrokerDetail,
    BrokersPage,
    Disk,
    NameServerRow,
)
from downrange.console.cluster.pages.common import Note
from downrange.console.cluster.problems import NoSuchBroker
from downrange.errors import RocketMQError, ServerError, WireError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from downrange.console.cluster.poller import Poller

#: What stands in the place of a secret.
HIDDEN: Final = "(hidden)"
#: How Apache's brokers write the size of a disk.
_CAPACITY: Final = re.compile(r"Total : (.+?), Free : (.+?)\.?\s*")


async def brokers_page(poller: Poller) -> BrokersPage:
    """Return all brokers as of the last poll, and all name servers."""
    servers = await poller.admin.name_servers()
    return BrokersPage(
        state=poller.state,
        brokers=poller.overview().brokers,
        name_servers=tuple(
            NameServerRow(
                address=each.address,
                is_up=each.problem is None,
                problem=each.problem,
                settings=without_secrets(each.settings),
            )
            for each in servers
        ),
    )


async def broker_detail(poller: Poller, name: str) -> BrokerDetail:
    """Return one broker; one that is down has its last known line only.

    One that refuses to tell its figures may still tell its settings, and the other way round.

    Raises:
        NoSuchBroker: There is no such broker.
    """
    rows = {row.name: row for row in poller.overview().brokers}
    if name not in rows:
        raise NoSuchBroker(name, rows)
    facts = poller.facts
    found = [each for each in facts.brokers if each.name == name] if facts is not None else []
    addresses = found[0].addresses if found else {}
    figures: dict[str, str] = {}
    settings: dict[str, str] = {}
    notes: list[Note] = []
    try:
        try:
            figures = (await poller.admin.broker_figures(name))[name]
        except (ServerError, WireError) as error:
            text = f"{name} does not tell its figures: {error.brief}"
            notes.append(Note(code="broker-figures-refused", text=text, values=_facts(name, error)))
        try:
            settings = (await poller.admin.broker_settings(name))[name]
        except (ServerError, WireError) as error:
            text = f"{name} does not tell its settings: {error.brief}"
            notes.append(
                Note(code="broker-settings-refused", text=text, values=_facts(name, error))
            )
    except RocketMQError as error:
        text = f"{name} does not answer: {error.brief}"
        notes.append(Note(code="broker-down", text=text, values=_facts(name, error)))
    return BrokerDetail(
        row=rows[name],
        addresses=addresses,
        disks=disks_of(figures, settings) if figures or settings else (),
        figures=figures,
        settings=without_secrets(dict(sorted(settings.items()))),
        notes=tuple(notes),
    )


def _facts(broker: str, error: RocketMQError) -> dict[str, str | int | float]:
    return {"broker": broker, "problem": error.brief}


def without_secrets(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings with the values of secrets replaced."""
    return {name: without_secret(name, value, HIDDEN) for name, value in settings.items()}


def disks_of(figures: Mapping[str, str], settings: Mapping[str, str]) -> tuple[Disk, ...]:
    """Return the disks of a broker, as far as it tells."""
    capacity = _CAPACITY.fullmatch(figures.get("commitLogDirCapacity", ""))
    root = settings.get("storePathRootDir")
    queue_path = settings.get("storePathConsumeQueue") or (f"{root}/consumequeue" if root else None)
    return (
        Disk(
            what="commit log",
            path=settings.get("storePathCommitLog") or root,
            used=_share(figures.get("commitLogDiskRatio")),
            total=None if capacity is None else capacity[1],
            free=None if capacity is None else capacity[2],
        ),
        Disk(
            what="queue index",
            path=queue_path,
            used=_share(figures.get("consumeQueueDiskRatio")),
            total=None,
            free=None,
        ),
    )


def _share(text: str | None) -> float | None:
    try:
        share = float(text or "")
    except ValueError:
        return None
    return share if 0 <= share <= 1 else None
