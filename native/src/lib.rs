//! Hot paths of Downrange. Each function here has a twin in Python, which is the reference:
//! same arguments, same results, same errors. README.md has the rules.
//!
//! This file only registers. One file per job; a file's first lines name its twins.

#![forbid(unsafe_code)]

use pyo3::prelude::*;

mod batch_bodies;
mod ended_runs;
mod hashes;
mod items;
mod json;
mod key_entries;
mod pop_texts;
mod properties;
mod record_run;
mod records;
mod recovered;
mod replies;
mod reply_messages;
mod send_answers;
mod send_frames;
mod send_headers;
mod send_runs;
mod spark_columns;
mod spark_rows;
mod units;
mod waiting;

/// The module `downrange._native`.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    // `downrange/native.py` refuses a binary of another version.
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    batch_bodies::register(module)?;
    ended_runs::register(module)?;
    hashes::register(module)?;
    items::register(module)?;
    key_entries::register(module)?;
    pop_texts::register(module)?;
    recovered::register(module)?;
    reply_messages::register(module)?;
    send_answers::register(module)?;
    send_frames::register(module)?;
    send_runs::register(module)?;
    spark_columns::register(module)?;
    spark_rows::register(module)?;
    units::register(module)
}
