"""Limits of the protocol and of Java's servers, each stated once.

Every other module takes them from here, so that a client refuses what a broker would refuse. Limits
that an option sets stand here as the option's default.
"""

from __future__ import annotations

from typing import Final

#: The largest `int` and `long` of Java, and so of most numbers in headers and records.
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

MIB: Final = 1024 * 1024

# ---- names ---------------------------------------------------------------------------------------

#: Bytes of a topic's name. A record of version 1 has one signed byte for its length.
TOPIC_BYTES_MAX: Final = 127
#: Bytes of a topic's name in a record of version 2, which has a signed 16-bit length.
TOPIC_BYTES_V2_MAX: Final = 2**15 - 1
#: Bytes of a retry or dead-letter topic's name: the group follows a prefix.
GROUP_TOPIC_BYTES_MAX: Final = 255
#: Bytes of a group's name, as in 5.5.0. Clients of 4.9 accept 255, but the retry topic of such a
#: group, a prefix of seven characters and the group, would be longer than a topic's name may be.
GROUP_BYTES_MAX: Final = 120

# ---- messages ------------------------------------------------------------------------------------

#: Bytes of a message's body, before compression, unless an option allows more (maxMessageSize).
BODY_BYTES_MAX: Final = 4 * MIB
#: Bytes of a received body after decompression, unless an option allows more. It bounds the memory
#: that a small damaged or hostile body can take.
UNPACKED_BODY_BYTES_MAX: Final = 128 * MIB
#: Bytes of all properties of a message together: their length is a signed 16-bit number.
PROPERTIES_BYTES_MAX: Final = 2**15 - 1
#: Messages of one batch. Apache counts the queue offsets of a batch in 16 bits and wraps them
#: beyond this.
BATCH_MESSAGES_MAX: Final = 2**15 - 1

# ---- pops ----------------------------------------------------------------------------------------

#: Messages of one pop, of our broker and of Apache's.
POPPED_MAX: Final = 32
#: Milliseconds for which a popped message is invisible at most: a year. Our broker takes a longer
#: time for this one. Apache has no limit, and its sums exceed 64 bits.
INVISIBLE_MS_MAX: Final = 365 * 24 * 3600 * 1000
#: Bytes of a pop's `attemptId`. Our broker keeps one per queue and group, in a table that it saves
#: with every pop in order. Apache has no limit.
ATTEMPT_ID_BYTES_MAX: Final = 1_024

# ---- frames, connections and queues --------------------------------------------------------------

#: Bytes of a frame, length word included. A Java peer closes the connection on a larger one.
FRAME_BYTES_MAX: Final = 16 * MIB
#: Requests that wait for a reply on one connection, unless an option says otherwise; Java's limit.
IN_FLIGHT_MAX: Final = 65_535
#: Queues of a topic on one broker. Our server refuses more: every request about a topic walks over
#: all its queues.
QUEUES_MAX: Final = 65_536
