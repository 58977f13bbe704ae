//! Entries of the key index. Twins: `add_key_entries` in `downrange/wire/batches.py` and
//! `PureKeySlots` in `downrange/store/key_slots.py`.

use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::hashes::{hash_ascii, hash_text, never_negative};
use crate::waiting::{self, LONG_COUNT, LONG_WRITE_BYTES};

/// The size of `KEY_ENTRY`: a hash of 32 bits and a log offset, in the machine's byte order.
const ENTRY_BYTES: usize = 12;
/// The size of an entry of a file: hash, log offset, seconds, number of the entry before it.
const FILE_ENTRY_BYTES: usize = 20;
/// Slots are written in pages of 4 KiB.
const PAGE_SLOTS_LOG2: usize = 10;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<KeySlots>()
}

/// Append the entries of one record. All texts are UTF-8; an empty one is absent.
pub fn add_entries(
    entries: &mut Vec<u8>,
    front: u32,
    log_offset: i64,
    unique_key: &[u8],
    keys: &[u8],
    tag: &[u8],
) {
    let mut add = |hash: u32| {
        entries.extend_from_slice(&never_negative(hash).to_ne_bytes());
        entries.extend_from_slice(&log_offset.to_ne_bytes());
    };
    if !unique_key.is_empty() {
        add(hash_of(front, unique_key));
    }
    for key in keys.split(|&byte| byte == b' ') {
        if !key.is_empty() {
            add(hash_of(front, key));
        }
    }
    if !tag.is_empty() {
        add(hash_of(hash_ascii(front, b"T#"), tag));
    }
}

/// Continue a hash over the bytes of a text.
pub fn hash_of(front: u32, text: &[u8]) -> u32 {
    if text.is_ascii() {
        return hash_ascii(front, text);
    }
    // The properties were checked to be UTF-8, so nothing is replaced here.
    hash_text(front, &String::from_utf8_lossy(text))
}

/// What `put` returns: the entries as the file has them, pages whose slots changed, and how many
/// slots were empty.
type PutEntries<'py> = (Bound<'py, PyBytes>, Vec<usize>, usize);

/// The slots of a file: each has the number of its newest entry, or 0.
#[pyclass(module = "downrange._native")]
struct KeySlots {
    slots: Vec<i32>,
}

#[pymethods]
impl KeySlots {
    /// Make empty slots; memory is taken only for pages that are touched.
    #[new]
    fn new(count: i64) -> PyResult<Self> {
        match i32::try_from(count) {
            Ok(count @ 1..) => Ok(KeySlots {
                slots: vec![0; count as usize],
            }),
            _ => Err(PyValueError::new_err("a file has 1 to 2^31 - 1 slots")),
        }
    }

    /// Return slots from their bytes in the machine's order.
    #[staticmethod]
    fn load(py: Python<'_>, data: &[u8]) -> PyResult<Self> {
        let (words, rest) = data.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(PyValueError::new_err("the last slot is cut off"));
        }
        let mut slots = KeySlots::new(words.len() as i64)?;
        waiting::run(py, data.len() > LONG_WRITE_BYTES, || {
            for (slot, word) in slots.slots.iter_mut().zip(words) {
                *slot = i32::from_ne_bytes(*word);
            }
        });
        Ok(slots)
    }

    fn get(&self, slot: usize) -> PyResult<i32> {
        let number = self.slots.get(slot).copied();
        number.ok_or_else(|| PyIndexError::new_err("no such slot"))
    }

    fn set(&mut self, slot: usize, number: i32) -> PyResult<()> {
        let place = self.slots.get_mut(slot);
        *place.ok_or_else(|| PyIndexError::new_err("no such slot"))? = number;
        Ok(())
    }

    /// Return the bytes of the slots between two places, in the machine's order.
    fn part<'py>(
        &self,
        py: Python<'py>,
        begin: usize,
        end: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let part = self.slots.get(begin..end);
        let part = part.ok_or_else(|| PyIndexError::new_err("no such slots"))?;
        PyBytes::new_with(py, part.len() * 4, |out| {
            let (words, _) = out.as_chunks_mut::<4>();
            for (word, slot) in words.iter_mut().zip(part) {
                *word = slot.to_ne_bytes();
            }
            Ok(())
        })
    }

    /// Put entries behind the last one of their slots.
    fn put<'py>(
        &mut self,
        py: Python<'py>,
        entries: &[u8],
        number: i64,
        seconds: i32,
    ) -> PyResult<PutEntries<'py>> {
        let (chunks, rest) = entries.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(PyValueError::new_err("the last entry is cut off"));
        }
        let count = chunks.len();
        let end = number.saturating_add(count as i64);
        if number < 1 || end - 1 > i64::from(i32::MAX) {
            return Err(PyValueError::new_err(
                "the numbers of entries are not positive numbers of 31 bits",
            ));
        }
        let slots = &mut self.slots;
        let mut data = Vec::with_capacity(count * FILE_ENTRY_BYTES);
        let mut pages = Vec::with_capacity(count);
        let mut slots_taken = 0;
        waiting::run(py, count > LONG_COUNT, || {
            for (number, entry) in (number..end).zip(chunks) {
                let number = number as i32;
                let [h0, h1, h2, h3, offset @ ..] = *entry;
                let hash = i32::from_ne_bytes([h0, h1, h2, h3]);
                let slot = i64::from(hash).rem_euclid(slots.len() as i64) as usize;
                let mut previous = slots[slot];
                if !(0 < previous && previous < number) {
                    previous = 0;
                    slots_taken += 1;
                }
                data.extend_from_slice(&hash.to_be_bytes());
                data.extend_from_slice(&i64::from_ne_bytes(offset).to_be_bytes());
                data.extend_from_slice(&seconds.to_be_bytes());
                data.extend_from_slice(&previous.to_be_bytes());
                slots[slot] = number;
                pages.push(slot >> PAGE_SLOTS_LOG2);
            }
        });
        Ok((PyBytes::new(py, &data), pages, slots_taken))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_an_entry_per_key() {
        let mut entries = Vec::new();
        add_entries(&mut entries, 7, 99, b"u", b" a  b ", "é".as_bytes());
        let (chunks, rest) = entries.as_chunks::<ENTRY_BYTES>();
        assert!(rest.is_empty());
        let hashes: Vec<i32> = chunks
            .iter()
            .map(|entry| i32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]]))
            .collect();
        let wanted = ["u", "a", "b", "T#é"].map(|key| never_negative(hash_text(7, key)));
        assert_eq!(hashes, wanted);
    }
}
