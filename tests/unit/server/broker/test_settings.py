"""Settings by Java's names, and the file that keeps their changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from downrange.errors import MalformedBody, OptionError
from downrange.options import BrokerOptions
from downrange.server.broker.settings import (
    SETTINGS,
    ChangedSettings,
    Settings,
    with_changes,
)
from downrange.store.retention import RetentionOptions
from tests.unit.server.broker.broker_stage import NOW_MS

DEFAULTS = Settings(BrokerOptions(), RetentionOptions())


class Kept:
    """The settings of one run of a broker."""

    def __init__(self, configured: Settings = DEFAULTS, data: bytes | None = None) -> None:
        self.now = configured
        self.table = ChangedSettings(configured, self._apply)
        if data is not None:
            self.table.load(data)
        self.notes = self.table.prepare()

    def _apply(self, settings: Settings) -> None:
        self.now = settings

    def change(self, **texts: str) -> None:
        self.table.change(self.now, texts, NOW_MS)

    def restarted(self, **options: Any) -> Kept:
        configured = Settings(BrokerOptions(**options), RetentionOptions())
        return Kept(configured, self.table.dump())


# ---- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_reads_what_it_writes(name: str) -> None:
    setting = SETTINGS[name]
    text = setting.text(DEFAULTS)
    assert setting.text(with_changes(DEFAULTS, {name: text})) == text
    assert with_changes(DEFAULTS, {name: text}) == DEFAULTS


@pytest.mark.parametrize(
    ("name", "text", "option", "value"),
    [
        ("brokerPermission", "4", "permission", 4),
        ("defaultMessageRequestMode", "POP", "default_request_mode", "POP"),
        ("defaultPopShareQueueNum", "-3", "default_pop_share_queues", -3),
        ("serverLoadBalancerEnable", "false", "is_load_balanced", False),
        ("cleanResourceInterval", "2500", "retention_interval", 2.5),
        ("flushCommitLogLeastPages", "4", "flush_bytes", 16384),
        ("flushConsumerOffsetInterval", "1000", "checkpoint_interval", 1.0),
        ("rejectTransactionMessage", "true", "is_transaction_rejected", True),
        ("traceTopicEnable", "true", "is_trace_topic_created", True),
        ("fileReservedTime", "48", "keep_hours", 48.0),
        ("fileReservedTime", "0.5", "keep_hours", 0.5),
        ("diskSpaceCleanForciblyRatio", "70", "disk_used_max", 0.7),
        ("diskSpaceWarningLevelRatio", "95", "disk_used_full", 0.95),
    ],
)
def test_a_setting_changes_its_option_in_javas_unit(
    name: str, text: str, option: str, value: object
) -> None:
    changed = with_changes(DEFAULTS, {name: text})
    assert getattr(getattr(changed, SETTINGS[name].part), option) == value
    assert SETTINGS[name].text(changed) == text


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({"brokerPermission": "5"}, "brokerPermission=5: permission=5 must be one of 6, 4, 2, 0"),
        ({"brokerPermission": "r"}, "brokerPermission=r is not a whole number"),
        ({"fileReservedTime": "soon"}, "fileReservedTime=soon is not a number of hours"),
        ({"fileReservedTime": "inf"}, "fileReservedTime=inf is not a number of hours"),
        ({"fileReservedTime": "-5"}, "fileReservedTime=-5: keep_hours=-5.0 must be above 0"),
        (
            {"defaultMessageRequestMode": "pop"},
            "default_request_mode='pop' must be one of PULL, POP",
        ),
        ({"defaultPopShareQueueNum": "all"}, "defaultPopShareQueueNum=all is not a whole number"),
        ({"flushCommitLogLeastPages": "0"}, "flush_bytes=0 is less than 1"),
        (
            {"diskSpaceCleanForciblyRatio": "95", "diskSpaceWarningLevelRatio": "91"},
            "diskSpaceCleanForciblyRatio=95, diskSpaceWarningLevelRatio=91: disk_used_max=0.95",
        ),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_javas_name(
    texts: dict[str, str], problem: str
) -> None:
    kept = Kept()
    with pytest.raises(OptionError) as refused:
        kept.change(**texts)
    assert problem in str(refused.value)
    assert (kept.now, kept.table.version) == (DEFAULTS, 0)


# ---- the file ----------------------------------------------------------------------------------


def test_changes_apply_again_after_a_restart_and_are_logged() -> None:
    kept = Kept()
    kept.change(fileReservedTime="48", brokerPermission="4")
    kept.change(traceOn="false")
    assert (kept.table.version, kept.table.changed_ms) == (2, NOW_MS)
    again = kept.restarted()
    assert again.now == kept.now
    assert again.now.retention.keep_hours == 48
    (note,) = again.notes
    assert not note.is_warning
    assert "brokerPermission=4, fileReservedTime=48, traceOn=false" in note.text
    assert again.restarted().now == kept.now


def test_a_change_back_to_the_configured_value_is_not_kept() -> None:
    kept = Kept()
    kept.change(fileReservedTime="48")
    kept.change(fileReservedTime="72")
    assert kept.now == DEFAULTS
    assert json.loads(kept.table.dump()) == {"changes": {}}
    assert kept.restarted().notes == []


def test_a_value_configured_after_a_change_wins_for_good() -> None:
    kept = Kept()
    kept.change(flushDiskType="SYNC_FLUSH", maxMessageSize="1000", traceOn="false")
    assert kept.restarted(message_bytes_max=2000).now.broker.flush == "sync"
    newer = kept.restarted(message_bytes_max=2000)
    assert newer.now.broker.message_bytes_max == 2000
    assert newer.table.version == 1, "the file must be saved anew"
    warning = newer.notes[0]
    assert warning.is_warning
    assert "maxMessageSize=1000 is not used" in warning.text
    assert "4194304 was configured, and that is 2000 now" in warning.text
    assert newer.restarted().now.broker.message_bytes_max == DEFAULTS.broker.message_bytes_max


@pytest.mark.parametrize(
    "changes",
    [
        {"ofTheFuture": {"value": "1", "configured": "0"}},
        {"maxMessageSize": {"value": "0", "configured": "4194304"}},
    ],
)
def test_a_change_that_this_release_cannot_use_is_left_out_with_a_warning(changes: Any) -> None:
    kept = Kept(data=json.dumps({"changes": changes}).encode())
    assert kept.now == DEFAULTS
    assert [note.is_warning for note in kept.notes] == [True]
    assert "config/brokerSettings.json" in kept.notes[0].text


@pytest.mark.parametrize("data", [b"[]", b"{", b'{"changes": {"traceOn": 5}}'])
def test_a_damaged_file_is_reported(data: bytes) -> None:
    with pytest.raises(MalformedBody):
        Kept(data=data)
