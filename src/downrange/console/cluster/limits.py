"""The limits of what the console reads, keeps and shows. Each has its reason."""

from __future__ import annotations

from typing import Final

# ---- pages ---------------------------------------------------------------------------------------

#: Rows of a page. A topic costs some requests, so a page of all topics would be too slow.
PAGE_ROWS_MAX: Final = 200
#: Characters of the text of a search box; names have at most 255.
SEARCH_TEXT_MAX: Final = 1000
#: Rows of queues on a page of a topic or a group.
QUEUE_ROWS_MAX: Final = 2000
#: Topics that the form of messages offers; a browser is slow with more.
TOPICS_OFFERED_MAX: Final = 1000
#: Queues of a topic whose first message is looked at for a row of the list of topics.
ROW_QUEUES_MAX: Final = 64
#: Groups of a topic in the list of topics.
TOPIC_GROUPS_MAX: Final = 20
#: Rows of the largest lags, and of groups with dead letters, in the overview.
TOP_ROWS: Final = 10
#: Groups whose members are asked for the list of clients.
CLIENT_GROUPS_MAX: Final = 500
#: Dead-letter topics that are looked at for the figure of the last hour.
DEAD_LETTER_TOPICS_MAX: Final = 500
#: Members of a group that are asked what they read; each is a request that goes on to the member.
MEMBERS_ASKED_MAX: Final = 100

# ---- messages ------------------------------------------------------------------------------------

#: Messages that a search shows.
SEARCH_ROWS_MAX: Final = 100
#: Messages that a search or a trace reads.
SCAN_MAX: Final = 5000
#: Bytes of bodies that a search or a trace reads.
SCAN_BYTES_MAX: Final = 64 * 1024 * 1024
#: Queues that a search, a trace or a tail reads at the same time: each answer may have megabytes.
QUEUES_AT_ONCE: Final = 8
#: Seconds that a search or a trace may take.
SCAN_SECONDS: Final = 5.0
#: Bytes of a body that are shown; a download has all of them.
BODY_SHOWN_BYTES: Final = 64 * 1024
#: Bytes of a body that are shown in hexadecimal.
HEX_SHOWN_BYTES: Final = 4096
#: Bytes of a body that is decompressed for a list or a filter; its own page decompresses more.
LISTED_BODY_BYTES: Final = 1024 * 1024
#: Characters of a body in a list.
PREVIEW_CHARS: Final = 160
#: Messages of one batch of a tail; a browser cannot show more in a second.
TAIL_BATCH_ROWS: Final = 50
#: Bytes of messages that a tail reads in a turn; what is left is read in the next one.
TAIL_TURN_BYTES: Final = 8 * 1024 * 1024
#: Messages that a tail reads before it stops; a forgotten window must not read for ever.
TAIL_SCAN_MAX: Final = 1_000_000
#: Seconds that a tail runs before it stops.
TAIL_SECONDS: Final = 1800.0
#: Tails that run at the same time, of all viewers.
TAILS_MAX: Final = 20
#: Trace records that a report reads.
TRACE_RECORDS_MAX: Final = 20_000

# ---- actions -------------------------------------------------------------------------------------

#: Dead letters of one action; a larger number is work for the command line.
RESEND_MAX: Final = 1000
#: Dead letters of one export.
EXPORT_MAX: Final = 100_000
#: The most dead letters per second that are sent again.
RESEND_RATE_MAX: Final = 1000.0
#: Bytes of a message that is sent from here, as for producers.
SEND_BYTES_MAX: Final = 4 * 1024 * 1024

# ---- the poller ----------------------------------------------------------------------------------

#: Seconds between two polls of the brokers' figures.
POLL_SECONDS: Final = 2.0
#: The shortest time between two polls that can be asked for, in seconds.
POLL_SECONDS_MIN: Final = 0.05
#: The longest one.
POLL_SECONDS_MAX: Final = 3600.0
#: Seconds between two polls of lags, topics and dead letters, which cost more.
SLOW_POLL_SECONDS: Final = 10.0
#: The slow poll rests at least this many times as long as it took: it must not load a cluster.
SLOW_POLL_REST: Final = 10.0
#: Seconds until a poll gives up.
POLL_TIMEOUT: Final = 5.0
#: Topics that the sweep reads in one go, to keep the order by rate; two requests each.
SWEEP_TOPICS: Final = 50
#: Seconds of the sweep in each slow poll, so that it takes a twentieth of the time at most.
SWEEP_SECONDS: Final = 0.5
#: History in fine steps, in seconds: kept for 15 minutes.
RECENT_SECONDS: Final = 900.0
#: History in coarse steps, in seconds: kept for 24 hours.
DAY_SECONDS: Final = 86_400.0
#: Seconds of a coarse step.
DAY_STEP: Final = 120.0
#: Seconds that figures of a topic's row may be old when the same row is shown again.
ROW_SECONDS: Final = 2.0
#: Viewers of the live overview.
VIEWERS_MAX: Final = 200
#: Brokers that the overview remembers, with those that went away.
BROKERS_MAX: Final = 500
#: Seconds that a page may take; a form or a page that takes longer ends with `PageTooSlow`.
PAGE_SECONDS: Final = 15.0
#: Rows of a page that are read at the same time.
ROWS_AT_ONCE: Final = 16
#: Seconds that an action may take; one that sends dead letters with a rate takes long.
ACTION_SECONDS: Final = 600.0
#: Seconds that dead letters with a rate may take; the rest is for reading and slow brokers.
RESEND_SECONDS_MAX: Final = 0.8 * ACTION_SECONDS
