"""Clients of these tests wait long: Spark's processes may keep a small machine busy for seconds.

A send that fails in between fails its test, and one that is repeated is stored twice.
"""

from __future__ import annotations

from typing import Any, Final

from downrange.options import ClientOptions, ProducerOptions
from tests.support.waiting import WAIT_TIMEOUT

CLIENT: Final = ClientOptions(connect_timeout=WAIT_TIMEOUT, call_timeout=WAIT_TIMEOUT)
#: Settings of a producer.
SENDING: Final[dict[str, Any]] = {
    "options": ProducerOptions(timeout=WAIT_TIMEOUT),
    "client_options": CLIENT,
}
