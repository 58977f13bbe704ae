//! Lets other threads run meanwhile. Work of more than about 50 µs is long; for less, getting the
//! interpreter back would take longer. Work that makes objects of Python cannot be done so.

use pyo3::prelude::*;

/// Reading more bytes than this is long: 100 to 300 messages.
pub const LONG_READ_BYTES: usize = 64 << 10;
/// Writing and checksumming more bytes than this is long.
pub const LONG_WRITE_BYTES: usize = 512 << 10;
/// Hashing more bytes than this, the texts of keys and tags, is long.
pub const LONG_HASH_BYTES: usize = 16 << 10;
/// Looking at more bytes of a queue index than this is long.
pub const LONG_UNIT_BYTES: usize = 256 << 10;
/// More messages than this are long, for what takes some 30 ns for each.
pub const LONG_COUNT: usize = 1024;

/// Do some work; if it is long, without the interpreter.
pub fn run<T: Send>(py: Python<'_>, is_long: bool, work: impl FnOnce() -> T + Send) -> T {
    if is_long { py.detach(work) } else { work() }
}
