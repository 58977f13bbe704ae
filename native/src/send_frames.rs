//! The frame of a send. Twin: `send_frame` in `downrange/wire/send_commands.py`.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyString, PyTuple};

/// Behind which part of a form the properties are.
const PROPERTIES_GAP: usize = 3;

static PURE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(send_frame, module)?)
}

/// Fill the gaps of a form, and return the frame with a body.
///
/// What cannot be encoded is left to the twin, which raises the error. So are numbers of more than
/// 64 bits and values of other types: the twin takes what Python can format and join.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // the twin's
fn send_frame<'py>(
    form: &Bound<'py, PyAny>,
    sys_flag: &Bound<'py, PyAny>,
    born_ms: &Bound<'py, PyAny>,
    flag: &Bound<'py, PyAny>,
    properties: &Bound<'py, PyAny>,
    flags: &Bound<'py, PyAny>,
    request_id: &Bound<'py, PyAny>,
    body: &Bound<'py, PyAny>,
    bytes_max: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = form.py();
    if let (Ok(sys_flag), Ok(born_ms), Ok(flag), Ok(flags), Ok(request_id), Ok(bytes_max)) = (
        sys_flag.extract(),
        born_ms.extract(),
        flag.extract(),
        flags.extract(),
        request_id.extract(),
        bytes_max.extract(),
    ) && let (Ok(properties), Ok(body)) = (properties.cast::<PyString>(), body.cast::<PyBytes>())
        && let Ok(properties) = properties.to_str()
    {
        let usual = Usual {
            numbers: [sys_flag, born_ms, flag, flags, request_id],
            properties,
            body: body.as_bytes(),
            bytes_max,
        };
        if let Some(frame) = usual.frame(form)? {
            return Ok(frame.into_any());
        }
    }
    let pure = PURE.import(py, "downrange.wire.send_commands", "pure_send_frame")?;
    pure.call1((
        form, sys_flag, born_ms, flag, properties, flags, request_id, body, bytes_max,
    ))
}

/// What fills the gaps of a form.
struct Usual<'a> {
    /// In the order of the form: three before the properties, and two behind them.
    numbers: [i64; 5],
    properties: &'a str,
    body: &'a [u8],
    bytes_max: i64,
}

impl Usual<'_> {
    /// Return the frame; None if it is too large.
    fn frame<'py>(&self, form: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let py = form.py();
        let parts = form.getattr(intern!(py, "parts"))?;
        let mut numbers = self.numbers.iter();
        let mut digits = itoa::Buffer::new();
        let mut header = Vec::with_capacity(1024);
        for (index, part) in parts.cast::<PyTuple>()?.iter_borrowed().enumerate() {
            header.extend_from_slice(part.cast::<PyBytes>()?.as_bytes());
            if index == PROPERTIES_GAP {
                quote(self.properties.as_bytes(), &mut header);
            } else if let Some(&number) = numbers.next() {
                header.extend_from_slice(digits.format(number).as_bytes());
            }
        }
        let size = 8 + header.len() + self.body.len();
        let (true, true, Ok(length), Ok(word)) = (
            size as i64 <= self.bytes_max,
            header.len() < 1 << 24,
            i32::try_from(size - 4),
            i32::try_from(header.len()),
        ) else {
            return Ok(None);
        };
        let frame = PyBytes::new_with(py, size, |frame| {
            let (lengths, rest) = frame.split_at_mut(8);
            let (first, second) = lengths.split_at_mut(4);
            let (head, tail) = rest.split_at_mut(header.len());
            first.copy_from_slice(&length.to_be_bytes());
            second.copy_from_slice(&word.to_be_bytes());
            head.copy_from_slice(&header);
            tail.copy_from_slice(self.body);
            Ok(())
        })?;
        Ok(Some(frame))
    }
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
