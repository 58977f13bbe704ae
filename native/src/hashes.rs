//! Java's string hash. Twins: `java_hash` and `key_hash_behind` in `downrange/wire/hashes.py`.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(java_hash, module)?)?;
    module.add_function(wrap_pyfunction!(key_hash_behind, module)?)
}

/// Return Java's `String.hashCode`: 31 h + unit over UTF-16 units.
#[pyfunction]
fn java_hash(text: &Bound<'_, PyString>) -> PyResult<i32> {
    Ok(hash_of(0, text)? as i32)
}

/// Return the hash of a key in a key index, from the state after its topic.
#[pyfunction]
fn key_hash_behind(front: u32, key: &Bound<'_, PyString>) -> PyResult<i32> {
    Ok(never_negative(hash_of(front, key)?))
}

/// Continue a hash over ASCII bytes.
pub fn hash_ascii(front: u32, text: &[u8]) -> u32 {
    text.iter()
        .fold(front, |hash, &unit| step(hash, unit.into()))
}

/// Continue a hash over a text, unit by unit of its UTF-16 form.
pub fn hash_text(front: u32, text: &str) -> u32 {
    if text.is_ascii() {
        return hash_ascii(front, text.as_bytes());
    }
    text.encode_utf16().fold(front, step)
}

/// Return Java's `abs` of a hash, and 0 where that overflows.
pub fn never_negative(hash: u32) -> i32 {
    (hash as i32).checked_abs().unwrap_or(0)
}

fn step(hash: u32, unit: u16) -> u32 {
    hash.wrapping_mul(31).wrapping_add(unit.into())
}

fn hash_of(front: u32, text: &Bound<'_, PyString>) -> PyResult<u32> {
    match text.to_str() {
        Ok(text) => Ok(hash_text(front, text)),
        // A lone surrogate has no UTF-8 form. Python writes the UTF-16 units of such a text.
        Err(_) => {
            let units = text.call_method1("encode", ("utf-16-le", "surrogatepass"))?;
            let units = units.cast::<PyBytes>()?.as_bytes();
            let (pairs, _) = units.as_chunks();
            Ok(pairs
                .iter()
                .fold(front, |hash, &pair| step(hash, u16::from_le_bytes(pair))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_hashes_as_in_java() {
        assert_eq!(hash_text(0, ""), 0);
        assert_eq!(hash_text(0, "TagA"), 2_598_919);
        assert_eq!(hash_text(0, "polygenelubricants"), 0x8000_0000);
        assert_eq!(hash_text(0, "\u{1f600}"), 0xd83d * 31 + 0xde00);
    }

    #[test]
    fn a_hash_continues_behind_a_front() {
        let front = hash_text(0, "orders#");
        assert_eq!(hash_text(front, "o-1"), hash_text(0, "orders#o-1"));
    }

    #[test]
    fn a_key_hash_is_zero_where_abs_overflows() {
        assert_eq!(never_negative(0x8000_0000), 0);
        assert_eq!(never_negative(0xffff_ffff), 1);
    }
}
