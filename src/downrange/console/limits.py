"""The limits of the web side. Those of what is asked from a cluster are in `cluster.limits`."""

from __future__ import annotations

from typing import Final

#: Bytes of the body of a request; larger ones are refused before they are read.
FORM_BYTES_MAX: Final = 5 * 1024 * 1024
#: Fields of a form; one per selected dead letter, and some more.
FORM_FIELDS_MAX: Final = 2000
#: Characters of one field, except bodies of messages.
FIELD_CHARACTERS_MAX: Final = 4096
#: Bytes of the request line and the headers together.
HEADER_BYTES_MAX: Final = 32 * 1024
#: Connections, and requests at the same time; a request beyond it gets 503.
CONNECTIONS_MAX: Final = 200
#: Connections of one address, so that nobody takes the places of all others; more get 503. All
#: visitors behind a proxy have one address.
CONNECTIONS_OF_ONE_MAX: Final = 100
#: Seconds in which the head of a request must arrive, and within which a body must make progress.
REQUEST_PAUSE_SECONDS: Final = 10.0
#: Seconds in which a whole request must arrive; enough for the largest form on a slow line.
REQUEST_SECONDS_MAX: Final = 120.0
#: Seconds within which the reader of an answer must take more of what waits for it.
ANSWER_PAUSE_SECONDS: Final = 30.0
#: Bytes of answers that the system keeps per connection, beside what waits in the console. Without
#: a limit, they may be megabytes: the console sees no progress until a third of them was read.
ANSWER_BUFFER_BYTES: Final = 64 * 1024
#: Event streams of all viewers, and of one session or address.
STREAMS_MAX: Final = 100
STREAMS_OF_ONE_MAX: Final = 12
#: Seconds after which a stream ends; the browser opens a new one by itself.
STREAM_SECONDS_MAX: Final = 3600.0
#: Seconds after which a stream checks the rights of its viewer again; without events in this time,
#: it sends a sign of life.
STREAM_CHECK_SECONDS: Final = 15.0
#: Sessions that are logged in; the oldest one ends when there are more.
SESSIONS_MAX: Final = 1000
#: Seconds without a request of its visitor after which a session ends, and its longest life.
SESSION_IDLE_SECONDS: Final = 3600.0
SESSION_SECONDS_MAX: Final = 12 * 3600.0
#: Failed logins from one address, and of all addresses, in a window of this many seconds.
LOGIN_FAILURES_MAX: Final = 5
LOGIN_FAILURES_OF_ALL_MAX: Final = 50
LOGIN_WINDOW_SECONDS: Final = 300.0
#: Addresses whose failed logins are remembered.
LOGIN_ADDRESSES_MAX: Final = 10_000
#: Seconds between two lines of the log about refused forms of one address, and the most lines per
#: second about those of all.
REFUSAL_LOG_SECONDS: Final = 10.0
REFUSAL_LINES_MAX: Final = 20
#: Addresses whose refused forms are remembered.
REFUSAL_ADDRESSES_MAX: Final = 1000
#: Records of the audit file that are read for the page, from its end.
AUDIT_ROWS_MAX: Final = 1000
#: Bytes of the audit file that are read for the page, from its end.
AUDIT_BYTES_READ: Final = 2 * 1024 * 1024
#: Size at which the audit file is renamed to `.1`, and a new one begins.
AUDIT_FILE_BYTES: Final = 64 * 1024 * 1024
