"""The checkpoint: the position up to which log and indexes are durable.

    i64 store time of the last durable record, i64 of the last one in a durable queue index,
    i64 of the last one in a durable key index,
    5.x: i64 and i64 for replicas, unused here; 5.5: i64 log offset that the durable indexes cover

Recovery begins there. Releases before 5.5 have only the times, so these are written as well.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from downrange.store.files import Write

if TYPE_CHECKING:
    from downrange.store.files import Files

PATH: Final = "checkpoint"
_FILE_BYTES: Final = 4096
_FORM: Final = Struct(">qqqqqq")
#: Subtracted from the times, as Java does: it writes them a little early.
_MARGIN_MS: Final = 3000


class Checkpoint(NamedTuple):
    """What is durable. All zeros: nothing is known to be."""

    log_ms: int = 0
    queues_ms: int = 0
    keys_ms: int = 0
    master_offset: int = 0
    confirmed_offset: int = 0
    covered_offset: int = 0

    @property
    def safe_ms(self) -> int:
        """Records stored before this time are durable in the log and the queue indexes."""
        return max(min(self.log_ms, self.queues_ms) - _MARGIN_MS, 0)


def load_checkpoint(files: Files) -> Checkpoint:
    """Read the checkpoint; missing bytes read as zeros."""
    data = files.read_all(PATH) or b""
    return Checkpoint(*_FORM.unpack(data[: _FORM.size].ljust(_FORM.size, b"\x00")))


def save_checkpoint(files: Files, checkpoint: Checkpoint) -> None:
    """Write the checkpoint and make it durable. It fits one sector, so it is never torn."""
    files.write_durably([Write(PATH, _FILE_BYTES, 0, _FORM.pack(*checkpoint))])
