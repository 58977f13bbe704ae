"""What comes for a caller who has gone in the same moment."""

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
    """Takes everything."""

    def write(self, data: bytes) -> None:
        """Pass it over."""


def _reply(channel: _Channel) -> None:
    channel.data_received(encode(Command(0, request_id=1, flags=int(CommandFlag.REPLY))))


def _lose(channel: _Channel) -> None:
    channel.connection_lost(None)


@pytest.mark.parametrize("arrive", [_reply, _lose])
def test_what_comes_for_a_caller_who_just_gave_up_is_passed_over(
    arrive: Callable[[_Channel], None],
) -> None:
    async def play() -> None:
        channel = _Channel("broker:1", None)
        channel.connection_made(cast("asyncio.Transport", FakeTransport()))
        call = asyncio.create_task(channel.ask(Command(1)))
        await asyncio.sleep(0)
        call.cancel()
        arrive(channel)  # before the caller runs again
        with pytest.raises(asyncio.CancelledError):
            await call
        assert channel._link.in_flight == 0

    asyncio.run(play())
