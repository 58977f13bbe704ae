"""Retention: delete segments of the log that are too old, or the oldest ones on a full disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from downrange.errors import OptionError

if TYPE_CHECKING:
    from downrange.store.files import Files
    from downrange.store.message_store import MessageStore


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionOptions:
    """How long messages are kept. Java's names stand in parentheses.

    Attributes:
        keep_hours: A segment is deleted when its newest message is older (fileReservedTime; Java
            waits for the hour `deleteWhen`, or for diskMaxUsedSpaceRatio).
        disk_used_max: While a larger part of the disk is in use, the oldest segments are deleted
            whatever their age (diskSpaceCleanForciblyRatio).
        disk_used_full: While a larger part of the disk is in use, new messages are refused
            (diskSpaceWarningLevelRatio).
    """

    keep_hours: float = 72.0
    disk_used_max: float = 0.85
    disk_used_full: float = 0.90

    def __post_init__(self) -> None:
        """Refuse wrong values.

        Raises:
            OptionError: Names the option and its value.
        """
        if self.keep_hours <= 0:
            raise OptionError(f"keep_hours={self.keep_hours} must be above 0")
        if not 0 < self.disk_used_max <= self.disk_used_full <= 1:
            raise OptionError(
                f"disk_used_max={self.disk_used_max} and disk_used_full={self.disk_used_full} "
                "must be between 0 and 1, the first not above the second"
            )


def disk_used(files: Files, freed_soon_bytes: int = 0) -> float:
    """Return the part of the disk that is in use, from 0 to 1.

    Args:
        files: The store's folder.
        freed_soon_bytes: Bytes of files that are about to be removed; they count as free.
    """
    free, total = files.space()
    return 1 - (free + freed_soon_bytes) / total


def is_disk_full(files: Files, options: RetentionOptions) -> bool:
    """Whether new messages must be refused for lack of space."""
    return disk_used(files) > options.disk_used_full


def drop_old_segments(
    store: MessageStore, files: Files, options: RetentionOptions, now_ms: int
) -> int:
    """Remove segments that are too old, or the oldest ones on a full disk; return how many.

    The segment that is written to always stays, and so do segments that are not durable yet. The
    next full flush removes the files; until then, their space counts as free.
    """
    dropped = 0
    while store.log.can_drop_first:
        # The first record of the next segment is not older than any record of this one.
        following = store.log.first_record_of(store.log.segment_starts[1])
        age_ms = 0 if following is None else now_ms - following.store_ms
        is_old = age_ms > options.keep_hours * 3_600_000
        if not is_old and disk_used(files, store.freed_soon_bytes) <= options.disk_used_max:
            break
        store.drop_first_segment()
        dropped += 1
    return dropped
