//! Offsets in the reply to a pop. Twin: `offsets_texts` in `downrange/wire/pop_receipts.py`.

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::items::{push_number, push_value};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(offsets_texts, module)?)
}

/// Return `startOffsetInfo` and `msgOffsetInfo`.
#[pyfunction]
fn offsets_texts(popped: &Bound<'_, PyAny>) -> PyResult<(String, String)> {
    let (mut starts, mut messages) = (Vec::with_capacity(32), Vec::with_capacity(512));
    for entry in popped.try_iter()? {
        let (kind, queue_id, start, offsets): (Bound<'_, PyString>, i64, i64, Bound<'_, PyAny>) =
            entry?.extract()?;
        for text in [&mut starts, &mut messages] {
            if !text.is_empty() {
                text.push(b';');
            }
            text.extend_from_slice(kind.to_str()?.as_bytes());
            text.push(b' ');
            push_number(text, queue_id);
            text.push(b' ');
        }
        push_number(&mut starts, start);
        push_value(&mut messages, &offsets)?;
    }
    Ok((String::from_utf8(starts)?, String::from_utf8(messages)?))
}
