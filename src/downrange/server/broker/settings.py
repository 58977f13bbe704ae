"""The settings that request 25 changes, by Java's names, and the file that keeps the changes.

`SETTINGS` maps a name to an option of the broker or of retention. A value travels as text, in
Java's unit. `ChangedSettings` keeps the changes in `config/brokerSettings.json`.

One rule: the last change wins. A change is saved with the value that was configured when it was
made (by flag, config file or default). At the next start it applies as long as the same value is
configured. If the operator has configured another value since, that one applies, and the change is
removed. Java has no such question: its broker writes changes into its configuration file.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from msgspec import field

from downrange.errors import OptionError
from downrange.server.outputs import Note
from downrange.wire.bodies import Body, decode_body

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from downrange.options import BrokerOptions
    from downrange.store.retention import RetentionOptions

PATH: Final = "config/brokerSettings.json"

_PAGE_BYTES: Final = 4096


class Settings(NamedTuple):
    """The options that settings belong to."""

    broker: BrokerOptions
    retention: RetentionOptions


Part: TypeAlias = Literal["broker", "retention"]


class Setting(NamedTuple):
    """An option that can be changed while the broker runs.

    Attributes:
        part: The member of `Settings` that has it.
        option: Its name there.
        read: Turns Java's text into a value; raises ValueError.
        write: Turns a value into Java's text.
    """

    part: Part
    option: str
    read: Callable[[str], Any]
    write: Callable[[Any], str]

    def text(self, settings: Settings) -> str:
        """Return the value as Java's text."""
        return self.write(getattr(getattr(settings, self.part), self.option))


# ---- values as text ----------------------------------------------------------------------------


def _read_switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("is neither true nor false")
    return text.lower() == "true"


def write_switch(value: bool) -> str:
    """Return true or false as Java writes it."""
    return "true" if value else "false"


def _read_flush(text: str) -> str:
    if text not in ("SYNC_FLUSH", "ASYNC_FLUSH"):
        raise ValueError("is neither SYNC_FLUSH nor ASYNC_FLUSH")
    return "sync" if text == "SYNC_FLUSH" else "async"


def _write_flush(value: str) -> str:
    return "SYNC_FLUSH" if value == "sync" else "ASYNC_FLUSH"


def _read_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("is not a whole number") from None


def _write_number(value: float) -> str:
    return str(round(value))


def _read_ms(text: str) -> float:
    return _read_number(text) / 1000


def write_ms(seconds: float) -> str:
    """Return seconds as milliseconds."""
    return str(round(seconds * 1000))


def _read_hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = math.nan
    if not math.isfinite(hours):
        raise ValueError("is not a number of hours")
    return hours


def _write_hours(hours: float) -> str:
    return str(round(hours)) if hours == round(hours) else repr(hours)


def _read_percent(text: str) -> float:
    return _read_number(text) / 100


def _write_percent(part: float) -> str:
    return str(round(part * 100))


def _read_pages(text: str) -> int:
    return _read_number(text) * _PAGE_BYTES


def _write_pages(size: int) -> str:
    return str(math.ceil(size / _PAGE_BYTES))


def _switch(option: str) -> Setting:
    return Setting("broker", option, _read_switch, write_switch)


def _number(option: str) -> Setting:
    return Setting("broker", option, _read_number, _write_number)


def _duration(option: str) -> Setting:
    return Setting("broker", option, _read_ms, write_ms)


def _percent(option: str) -> Setting:
    return Setting("retention", option, _read_percent, _write_percent)


#: Java's name -> the option that it changes.
SETTINGS: Final = {
    "autoCreateSubscriptionGroup": _switch("is_group_created"),
    "autoCreateTopicEnable": _switch("is_topic_created"),
    "brokerPermission": _number("permission"),
    "channelExpiredTimeout": _duration("client_timeout"),
    "cleanResourceInterval": _duration("retention_interval"),
    "defaultTopicQueueNums": _number("default_topic_queues"),
    "diskSpaceCleanForciblyRatio": _percent("disk_used_max"),
    "diskSpaceWarningLevelRatio": _percent("disk_used_full"),
    "enablePropertyFilter": _switch("is_sql_enabled"),
    "enableRetryTopicV2": _switch("is_retry_topic_v2"),
    "fileReservedTime": Setting("retention", "keep_hours", _read_hours, _write_hours),
    "flushCommitLogLeastPages": Setting("broker", "flush_bytes", _read_pages, _write_pages),
    "flushConsumerOffsetInterval": _duration("checkpoint_interval"),
    "flushDiskType": Setting("broker", "flush", _read_flush, _write_flush),
    "flushIntervalCommitLog": _duration("flush_interval"),
    "maxMessageSize": _number("message_bytes_max"),
    "maxTransferBytesOnMessageInMemory": _number("pull_bytes_max"),
    "maxTransferCountOnMessageInMemory": _number("pull_messages_max"),
    "recallMessageEnable": _switch("is_recall_enabled"),
    "regionId": Setting("broker", "region", str, str),
    "rejectTransactionMessage": _switch("is_transaction_rejected"),
    "syncFlushTimeout": _duration("flush_timeout"),
    "timerMaxDelaySec": _number("timer_delay_max"),
    "traceOn": _switch("is_trace_on"),
    "traceTopicEnable": _switch("is_trace_topic_created"),
    "transactionCheckInterval": _duration("transaction_check_interval"),
    "transactionCheckMax": _number("transaction_checks_max"),
    "transactionTimeOut": _duration("transaction_timeout"),
    "useServerSideResetOffset": _switch("is_reset_by_pull"),
}


def with_changes(settings: Settings, texts: Mapping[str, str]) -> Settings:
    """Return settings with some of them replaced.

    Args:
        settings: Those before the change.
        texts: New values by Java's name; each name is one of `SETTINGS`.

    Raises:
        OptionError: Names the first value that cannot be read, or all of them if they are not valid
            together.
    """
    changes: dict[Part, dict[str, Any]] = {"broker": {}, "retention": {}}
    for name, text in texts.items():
        setting = SETTINGS[name]
        try:
            changes[setting.part][setting.option] = setting.read(text)
        except ValueError as error:
            raise OptionError(f"{name}={text[:100]} {error}") from error
    try:
        return Settings(
            dataclasses.replace(settings.broker, **changes["broker"]),
            dataclasses.replace(settings.retention, **changes["retention"]),
        )
    except OptionError as error:
        given = ", ".join([f"{name}={text[:100]}" for name, text in texts.items()][:20])
        raise OptionError(f"{given}: {error}") from error


# ---- the file ----------------------------------------------------------------------------------


class _Change(Body):
    """A value, and the one that was configured when it was set."""

    value: str
    configured: str


class _ChangesBody(Body):
    changes: dict[str, _Change] = field(default_factory=dict)


class ChangedSettings:
    """The settings that were changed while a broker ran.

    Args:
        configured: The settings that the broker was started with.
        apply: Puts settings into force.

    Attributes:
        version: The number of changes since the start.
        changed_ms: When the last one was made; None if that was before the start.
    """

    def __init__(self, configured: Settings, apply: Callable[[Settings], None]) -> None:
        self._configured = configured
        self._apply = apply
        self._changes: dict[str, _Change] = {}
        self._notes: list[Note] = []
        self.version = 0
        self.changed_ms: int | None = None

    def change(self, settings: Settings, texts: Mapping[str, str], now_ms: int) -> Settings:
        """Put new values into force and keep them; return the settings with them.

        Args:
            settings: Those in force.
            texts: New values by Java's name; each name is one of `SETTINGS`.
            now_ms: The time.

        Raises:
            OptionError: A value is refused; nothing has changed.
        """
        changed = with_changes(settings, texts)
        for name in texts:
            self._changes.pop(name, None)
            value = SETTINGS[name].text(changed)
            configured = SETTINGS[name].text(self._configured)
            if value != configured:
                self._changes[name] = _Change(value=value, configured=configured)
        self.version += 1
        self.changed_ms = now_ms
        self._apply(changed)
        return changed

    def dump(self) -> bytes:
        """Encode the file."""
        return _ChangesBody(changes=self._changes).encode()

    def load(self, data: bytes) -> None:
        """Decode the file and put into force what still applies.

        Raises:
            MalformedBody: It cannot be decoded.
        """
        found = decode_body(_ChangesBody, data).changes
        kept: dict[str, _Change] = {}
        for name, change in found.items():
            problem = self._outdated(name, change)
            if problem is None:
                kept[name] = change
            else:
                text = f"{PATH}: {name}={change.value} is not used: {problem}"
                self._notes.append(Note(text, is_warning=True))
        try:
            changed = with_changes(
                self._configured, {name: change.value for name, change in kept.items()}
            )
        except OptionError as error:
            self._notes.append(Note(f"{PATH} is not used: {error}", is_warning=True))
            return
        self._changes = kept
        self._apply(changed)

    def _outdated(self, name: str, change: _Change) -> str | None:
        setting = SETTINGS.get(name)
        if setting is None:
            return "this broker has no such setting"
        configured = setting.text(self._configured)
        if configured == change.configured:
            return None
        return f"it was set when {change.configured} was configured, and that is {configured} now"

    def prepare(self) -> list[Note]:
        """Return what is to be logged of the file, which is saved anew if a part of it is unused.

        Without that, the part would apply again when the old value is configured again.
        """
        notes, self._notes = self._notes, []
        if notes:
            self.version += 1
        if self._changes:
            texts = [f"{name}={change.value}" for name, change in sorted(self._changes.items())]
            notes.append(Note(f"settings changed at run time apply: {', '.join(texts)}"))
        return notes
