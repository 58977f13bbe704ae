"""What may go: old segments of the log, and whatever is oldest when the disk fills up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from downrange.errors import OptionError

if TYPE_CHECKING:
    from downrange.store.files import Files
    from downrange.store.message_store import MessageStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionOptions:
    """How long messages are kept.

    Attributes:
        keep_hours: A segment goes when its newest message is older (Java: fileReservedTime; there
            it waits for the hour `deleteWhen`, or for diskMaxUsedSpaceRatio).
        disk_used_max: A segment goes, however young, while more of the disk is in use (Java:
            diskSpaceCleanForciblyRatio).
        disk_used_full: New messages are refused while more of the disk is in use (Java:
            diskSpaceWarningLevelRatio).
    """

    keep_hours: float = 72.0
    disk_used_max: float = 0.85
    disk_used_full: float = 0.90

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.keep_hours <= 0:
            raise OptionError(f"keep_hours={self.keep_hours} keeps nothing")
        if not 0 < self.disk_used_max <= self.disk_used_full <= 1:
            raise OptionError(
                f"disk_used_max={self.disk_used_max} and disk_used_full={self.disk_used_full} "
                "must be parts of 1, the first not above the second"
            )


def disk_used(files: Files, bytes_to_go: int = 0) -> float:
    """Return which part of the disk is in use, without what will go soon."""
    free, total = files.space()
    return 1 - (free + bytes_to_go) / total


def is_disk_full(files: Files, options: RetentionOptions) -> bool:
    """Whether new messages must be refused until there is space again."""
    return disk_used(files) > options.disk_used_full


def drop_old_segments(
    store: MessageStore, files: Files, options: RetentionOptions, now_ms: int
) -> int:
    """Remove segments that are too old or in the way; return how many.

    The segment that is written to always stays, and so do those that are not durable yet. The disk
    has the space when the next full flush has run; until then, what is about to go counts as free.
    """
    dropped = 0
    while store.log.can_drop_first:
        # The next segment's first record is no older than anything in this one.
        following = store.log.first_record_of(store.log.segment_starts[1])
        age_ms = 0 if following is None else now_ms - following.store_ms
        is_old = age_ms > options.keep_hours * 3_600_000
        if not is_old and disk_used(files, store.bytes_to_go) <= options.disk_used_max:
            break
        store.drop_first_segment()
        dropped += 1
    return dropped
