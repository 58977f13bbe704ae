"""Records of pop consumption are written as text: the same bytes as by the classes of bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from downrange.server.broker.pop.checkpoints import Checkpoint
from downrange.wire.hashes import tag_hash
from downrange.wire.pop_bodies import AckBody, CheckpointBody, encode_pop_body
from downrange.wire.properties import decode_properties
from downrange.wire.run_items import fill
from tests.unit.server.broker.pop_stage import PopStage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from downrange.wire.run_items import RunItem

NAMES = [("T", "G"), ('t"\\\t', "gr\u00fcn \U0001f600")]


def _written(item: RunItem) -> tuple[bytes, bytes, int]:
    """Return body, properties and tag hash."""
    body, body_values, properties, values, tag = item
    return fill(body, body_values), fill(properties, values), tag


@pytest.mark.parametrize(("topic", "group"), NAMES)
@pytest.mark.parametrize("offsets", [range(7, 39), range(9, 10), [7, 9, 12], [8]])
@pytest.mark.parametrize("is_suspended", [False, True])
def test_checkpoint(topic: str, group: str, offsets: Sequence[int], *, is_suspended: bool) -> None:
    records = PopStage().state.pop_records
    name = (topic, group, 3, 7, 5_000)
    checkpoint = Checkpoint(name, offsets, 60_000, 4, is_suspended=is_suspended)
    body = CheckpointBody(
        broker="broker-a",
        group=group,
        differences=[offset - 7 for offset in offsets],
        invisible_ms=60_000,
        count=len(offsets),
        pop_ms=5_000,
        queue_id=3,
        revive_ms=65_000,
        start=7,
        is_suspended=is_suspended,
        topic=topic,
    )
    written, properties, tag = _written(records.checkpoint_item(checkpoint, 5_001))
    assert (written, tag) == (encode_pop_body(body), tag_hash("ck"))
    assert decode_properties(properties.decode()) == {
        "REAL_TOPIC": "rmq_sys_REVIVE_LOG_DefaultCluster",
        "TIMER_DELIVER_MS": "64000",
        "UNIQ_KEY": f"{topic}@3@7@{group}@5000@broker-a@ck",
        "TAGS": "ck",
        "TIMER_OUT_MS": "63000",
        "REAL_QID": "4",
    }


@pytest.mark.parametrize(("topic", "group"), NAMES)
@pytest.mark.parametrize("offsets", [range(7, 39), [7, 9]])
@pytest.mark.parametrize("is_batch", [True, False])
def test_acknowledgement(topic: str, group: str, offsets: Sequence[int], *, is_batch: bool) -> None:
    records = PopStage().state.pop_records
    checkpoint = Checkpoint((topic, group, 3, 7, 5_000), range(7, 39), 60_000, 4)
    body = AckBody(
        offset=-1 if is_batch else 7,
        offsets=list(offsets) if is_batch else None,
        broker="broker-a",
        group=group,
        pop_ms=5_000,
        queue_id=3,
        start=7,
        topic=topic,
    )
    item = records.acknowledgement_item(checkpoint, offsets, 90_000, is_batch=is_batch)
    written, properties, tag = _written(item)
    name = "bAck" if is_batch else "ack"
    assert (written, tag) == (encode_pop_body(body), tag_hash(name))
    assert decode_properties(properties.decode()) == {
        "REAL_TOPIC": "rmq_sys_REVIVE_LOG_DefaultCluster",
        "TIMER_DELIVER_MS": "90001",  # too late: it becomes due a moment later
        "UNIQ_KEY": f"{topic}@3@{-1 if is_batch else 7}@{group}@5000@broker-a@ack",
        "TAGS": name,
        "TIMER_OUT_MS": "90000",
        "REAL_QID": "4",
    }
