"""A reply or a lost connection that arrives just after its call was cancelled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from downrange.server.net.remote import _Channel
from downrange.wire.codes import CommandFlag
from downrange.wire.command import Command, encode

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeTransport:
    """Accepts all writes."""

    def write(self, data: bytes) -> None:
        """Do nothing."""


def _reply(channel: _Channel) -> None:
    channel.data_received(encode(Command(0, request_id=1, flags=int(CommandFlag.REPLY))))


def _lose(channel: _Channel) -> None:
    channel.connection_lost(None)


@pytest.mark.parametrize("arrive", [_reply, _lose])
def test_a_reply_or_a_loss_after_a_cancelled_call_is_ignored(
    arrive: Callable[[_Channel], None],
) -> None:
    async def play() -> None:
        channel = _Channel("broker:1", None)
        channel.connection_made(cast("asyncio.Transport", FakeTransport()))
        call = asyncio.create_task(channel.ask(Command(1)))
        await asyncio.sleep(0)
        call.cancel()
        arrive(channel)  # before the task of the caller runs again
        with pytest.raises(asyncio.CancelledError):
            await call
        assert channel._link.in_flight == 0

    asyncio.run(play())
