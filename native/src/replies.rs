//! Replies to stored sends. Twin: `StoredReply.encode` in `downrange/wire/send_replies.py`. The
//! parts of a header that are the same in all replies come from there, as `StoredForm` has them.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

/// What one reply says.
pub struct Stored<'a> {
    pub request_id: i32,
    pub queue_id: i32,
    /// Printable ASCII without quotes and backslashes, so it is a JSON string as it is.
    pub unique_key: &'a [u8],
    pub log_offset: i64,
    pub queue_offset: i64,
}

/// The constant parts of a header, in the codec of the requests.
pub enum Form {
    Json([PyBackedBytes; 7]),
    Binary([PyBackedBytes; 6]),
}

impl Form {
    /// Take the parts out of a `StoredForm`.
    pub fn new(form: &Bound<'_, PyAny>, is_binary: bool) -> PyResult<Self> {
        let wrong = |_| PyValueError::new_err("a form of another version");
        if is_binary {
            let parts: Vec<PyBackedBytes> = form.getattr("binary_parts")?.extract()?;
            return Ok(Form::Binary(parts.try_into().map_err(wrong)?));
        }
        let parts: Vec<PyBackedBytes> = form.getattr("json_parts")?.extract()?;
        Ok(Form::Json(parts.try_into().map_err(wrong)?))
    }

    /// Append the frame of a reply.
    pub fn write(&self, out: &mut Vec<u8>, stored: &Stored<'_>, code: i32) {
        let begin = out.len();
        out.extend_from_slice(&[0; 8]); // the two length words, known at the end
        let mark = match self {
            Form::Json(parts) => {
                write_json(out, parts, stored, code);
                0
            }
            Form::Binary(parts) => {
                write_binary(out, parts, stored, code);
                1 << 24
            }
        };
        let size = (out.len() - begin - 8) as i32;
        out[begin..begin + 4].copy_from_slice(&(size + 4).to_be_bytes());
        out[begin + 4..begin + 8].copy_from_slice(&(size | mark).to_be_bytes());
    }
}

fn write_json(out: &mut Vec<u8>, parts: &[PyBackedBytes; 7], stored: &Stored<'_>, code: i32) {
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(&parts[0]);
    out.extend_from_slice(digits.format(code).as_bytes());
    out.extend_from_slice(&parts[1]);
    out.extend_from_slice(digits.format(stored.queue_id).as_bytes());
    out.extend_from_slice(&parts[2]);
    out.push(b'"');
    out.extend_from_slice(stored.unique_key);
    out.push(b'"');
    out.extend_from_slice(&parts[3]);
    push_hex(out, stored.log_offset);
    out.extend_from_slice(&parts[4]);
    out.extend_from_slice(digits.format(stored.queue_offset).as_bytes());
    out.extend_from_slice(&parts[5]);
    out.extend_from_slice(digits.format(stored.request_id).as_bytes());
    out.extend_from_slice(&parts[6]);
}

fn write_binary(out: &mut Vec<u8>, parts: &[PyBackedBytes; 6], stored: &Stored<'_>, code: i32) {
    let mut digits = itoa::Buffer::new();
    out.extend_from_slice(&(code as i16).to_be_bytes());
    out.extend_from_slice(&parts[0]);
    out.extend_from_slice(&stored.request_id.to_be_bytes());
    out.extend_from_slice(&parts[1]);
    let fields = out.len();
    out.extend_from_slice(&[0; 4]); // the length of all fields
    out.extend_from_slice(&parts[2]);
    push_value(out, digits.format(stored.queue_id).as_bytes());
    out.extend_from_slice(&parts[3]);
    push_value(out, stored.unique_key);
    out.extend_from_slice(&parts[4]);
    push_hex(out, stored.log_offset);
    out.extend_from_slice(&parts[5]);
    push_value(out, digits.format(stored.queue_offset).as_bytes());
    let size = (out.len() - fields - 4) as i32;
    out[fields..fields + 4].copy_from_slice(&size.to_be_bytes());
}

fn push_value(out: &mut Vec<u8>, value: &[u8]) {
    out.extend_from_slice(&(value.len() as i32).to_be_bytes());
    out.extend_from_slice(value);
}

/// Append a number as 16 digits.
pub fn push_hex(out: &mut Vec<u8>, value: i64) {
    for shift in (0..64).step_by(4).rev() {
        out.push(b"0123456789ABCDEF"[(value >> shift & 15) as usize]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_offset_has_sixteen_digits() {
        let mut out = Vec::new();
        push_hex(&mut out, 0x1234_abcd);
        assert_eq!(out, b"000000001234ABCD");
    }
}
