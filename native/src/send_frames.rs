//! The frame of a send. Twin: `send_frame` in `downrange/wire/send_commands.py`.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyString, PyTuple};

static PURE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(send_frame, module)?)
}

/// Fill the gaps of a form, and return the frame with a body.
///
/// What cannot be encoded is left to the twin, which raises the error.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // the twin's
fn send_frame<'py>(
    form: &Bound<'py, PyAny>,
    sys_flag: i64,
    born_ms: i64,
    flag: i64,
    properties: &Bound<'py, PyString>,
    flags: i64,
    request_id: i64,
    body: &Bound<'py, PyBytes>,
    bytes_max: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let py = form.py();
    let parts = form.getattr(intern!(py, "parts"))?;
    let parts = parts.cast::<PyTuple>()?;
    let mut header = Vec::with_capacity(1024);
    let mut digits = itoa::Buffer::new();
    if let Ok(text) = properties.to_str() {
        for (index, part) in parts.iter_borrowed().enumerate() {
            header.extend_from_slice(part.cast::<PyBytes>()?.as_bytes());
            match index {
                0 => header.extend_from_slice(digits.format(sys_flag).as_bytes()),
                1 => header.extend_from_slice(digits.format(born_ms).as_bytes()),
                2 => header.extend_from_slice(digits.format(flag).as_bytes()),
                3 => quote(text.as_bytes(), &mut header),
                4 => header.extend_from_slice(digits.format(flags).as_bytes()),
                5 => header.extend_from_slice(digits.format(request_id).as_bytes()),
                _ => {}
            }
        }
        let content = body.as_bytes();
        let size = 8 + header.len() + content.len();
        if let (true, true, Ok(length), Ok(word)) = (
            size <= bytes_max,
            header.len() < 1 << 24,
            i32::try_from(size - 4),
            i32::try_from(header.len()),
        ) {
            let frame = PyBytes::new_with(py, size, |frame| {
                let (lengths, rest) = frame.split_at_mut(8);
                let (first, second) = lengths.split_at_mut(4);
                let (head, tail) = rest.split_at_mut(header.len());
                first.copy_from_slice(&length.to_be_bytes());
                second.copy_from_slice(&word.to_be_bytes());
                head.copy_from_slice(&header);
                tail.copy_from_slice(content);
                Ok(())
            })?;
            return Ok(frame.into_any());
        }
    }
    let pure = PURE.import(py, "downrange.wire.send_commands", "pure_send_frame")?;
    pure.call1((
        form, sys_flag, born_ms, flag, properties, flags, request_id, body, bytes_max,
    ))
}

/// Write a text as JSON.
fn quote(text: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    for &byte in text {
        match byte {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0x08 => out.extend_from_slice(b"\\b"),
            0x0c => out.extend_from_slice(b"\\f"),
            0..0x20 => {
                out.extend_from_slice(b"\\u00");
                out.push(HEX[usize::from(byte >> 4)]);
                out.push(HEX[usize::from(byte & 15)]);
            }
            _ => out.push(byte),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_quoted() {
        let mut out = Vec::new();
        quote("a\u{1}b\u{2}\"\\\n\u{1f}é".as_bytes(), &mut out);
        assert_eq!(out, "\"a\\u0001b\\u0002\\\"\\\\\\n\\u001fé\"".as_bytes());
    }
}
