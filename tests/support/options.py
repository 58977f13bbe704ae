"""Options of servers that several test folders use."""

from __future__ import annotations

from typing import Final

from downrange.options import BrokerOptions, ClientOptions, ProducerOptions

#: Delays and transaction checks that a test can wait for.
SHORT_TIMES: Final = BrokerOptions(
    delay_levels="1s 2s 3s 4s 5s",
    transaction_timeout=0.5,
    transaction_check_interval=0.5,
    is_trace_topic_created=True,
)
#: On a busy machine a server may stop for some seconds. Then a request would fail, or a send be
#: repeated, and the message be stored twice.
PATIENT_CLIENT: Final = ClientOptions(connect_timeout=60.0, call_timeout=60.0)
PATIENT_PRODUCER: Final = ProducerOptions(timeout=60.0)
