"""Options of servers that several test folders use."""

from __future__ import annotations

from typing import Final

from downrange.options import BrokerOptions

#: Delays and transaction checks that a test can wait for.
SHORT_TIMES: Final = BrokerOptions(
    delay_levels="1s 2s 3s 4s 5s",
    transaction_timeout=0.5,
    transaction_check_interval=0.5,
    is_trace_topic_created=True,
)
