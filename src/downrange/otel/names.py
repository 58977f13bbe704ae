"""Names of OpenTelemetry's messaging conventions, for RocketMQ: the only place that has them.

The conventions are in development and change. These are the names of version 1.37, which are also
those of the `rocketmq` page of 1.44. A newer registry drops the `messaging.` before the RocketMQ
attributes; when brokers and agents follow, this table changes together with `SCHEMA_URL`.
"""

from __future__ import annotations

from typing import Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.37.0"
#: The name of the tracer and of the meter.
SCOPE: Final = "downrange"

# ---- every span ----------------------------------------------------------------------------------

SYSTEM: Final = "messaging.system"
SYSTEM_NAME: Final = "rocketmq"
OPERATION_NAME: Final = "messaging.operation.name"
OPERATION_TYPE: Final = "messaging.operation.type"
DESTINATION: Final = "messaging.destination.name"
PARTITION: Final = "messaging.destination.partition.id"
BATCH_COUNT: Final = "messaging.batch.message_count"
CLIENT_ID: Final = "messaging.client.id"
CONSUMER_GROUP: Final = "messaging.consumer.group.name"
MESSAGE_ID: Final = "messaging.message.id"
CONVERSATION_ID: Final = "messaging.message.conversation_id"
ERROR_TYPE: Final = "error.type"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"

# ---- RocketMQ ------------------------------------------------------------------------------------

NAMESPACE: Final = "messaging.rocketmq.namespace"
MESSAGE_KEYS: Final = "messaging.rocketmq.message.keys"
MESSAGE_TAG: Final = "messaging.rocketmq.message.tag"
MESSAGE_TYPE: Final = "messaging.rocketmq.message.type"
MESSAGE_GROUP: Final = "messaging.rocketmq.message.group"
DELAY_LEVEL: Final = "messaging.rocketmq.message.delay_time_level"
DELIVERY_TIMESTAMP: Final = "messaging.rocketmq.message.delivery_timestamp"
CONSUMPTION_MODEL: Final = "messaging.rocketmq.consumption_model"

# ---- metrics of the conventions ------------------------------------------------------------------

OPERATION_DURATION: Final = "messaging.client.operation.duration"
PROCESS_DURATION: Final = "messaging.process.duration"
SENT_MESSAGES: Final = "messaging.client.sent.messages"
CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"
#: Bounds of the histograms, in seconds.
DURATION_BUCKETS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0),
)
