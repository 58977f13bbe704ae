//! Records that the broker makes itself. Twin: `encode_items` in `downrange/wire/run_items.py`.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyRange, PyRangeMethods, PyTuple};

const PROPERTIES_BYTES_MAX: usize = 32_767;
const BORN_V6: u8 = 1 << 4;
const SYS_FLAG_LOW_BYTE_AT: usize = 39;
const BORN_MS_AT: usize = 40;
const HEAD_BYTES_MIN: usize = 88;
const UNIT_BYTES: usize = 20;
/// At least the digits of a number of 64 bits and a comma.
const RANGE_TEXT_BYTES: usize = 24;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(encode_items, module)?)
}

/// Write the records of a run; return their bytes, and their units in the queue's index.
#[pyfunction]
fn encode_items<'py>(
    py: Python<'py>,
    form: &Bound<'py, PyAny>,
    items: &Bound<'py, PyAny>,
    mut queue_offset: i64,
    mut log_offset: i64,
    born_ms: i64,
    store_ms: i64,
) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
    let head = form.getattr(intern!(py, "head"))?.cast_into::<PyBytes>()?;
    let topic = form.getattr(intern!(py, "topic"))?.cast_into::<PyBytes>()?;
    let (head, topic) = (head.as_bytes(), topic.as_bytes());
    if head.len() < HEAD_BYTES_MIN {
        return Err(PyValueError::new_err(
            "the fixed part of a record is cut off",
        ));
    }
    let born_bytes = if head[SYS_FLAG_LOW_BYTE_AT] & BORN_V6 == 0 {
        8
    } else {
        20
    };
    let store_ms_at = BORN_MS_AT + 8 + born_bytes;
    let body_size_at = head.len() - 4;
    let mut data = Vec::with_capacity(1024);
    let mut units = Vec::with_capacity(UNIT_BYTES);
    for item in items.try_iter()? {
        let item = item?.cast_into::<PyTuple>()?;
        let start = data.len();
        data.extend_from_slice(head);
        fill(&mut data, &item, 0)?;
        let body_end = data.len();
        data.extend_from_slice(topic);
        data.extend_from_slice(&[0; 2]);
        let properties_at = data.len();
        fill(&mut data, &item, 2)?;
        let properties_size = data.len() - properties_at;
        if properties_size > PROPERTIES_BYTES_MAX {
            let problem = format!("{properties_size} bytes are too many");
            return Err(unencodable(py, problem)?);
        }
        if data[properties_at..].contains(&0) {
            return Err(unencodable(py, "a property has a NUL byte".to_owned())?);
        }
        data[properties_at - 2..][..2].copy_from_slice(&(properties_size as u16).to_be_bytes());
        let size = data.len() - start;
        let record = &mut data[start..];
        let body_size = body_end - start - head.len();
        let crc = crc32fast::hash(&record[head.len()..][..body_size]) & 0x7fff_ffff;
        record[..4].copy_from_slice(&(size as u32).to_be_bytes());
        record[8..12].copy_from_slice(&crc.to_be_bytes());
        record[20..28].copy_from_slice(&queue_offset.to_be_bytes());
        record[28..36].copy_from_slice(&log_offset.to_be_bytes());
        record[BORN_MS_AT..][..8].copy_from_slice(&born_ms.to_be_bytes());
        record[store_ms_at..][..8].copy_from_slice(&store_ms.to_be_bytes());
        record[body_size_at..][..4].copy_from_slice(&(body_size as u32).to_be_bytes());
        let tag_code: i64 = item.get_item(4)?.extract()?;
        units.extend_from_slice(&log_offset.to_be_bytes());
        units.extend_from_slice(&(size as u32).to_be_bytes());
        units.extend_from_slice(&tag_code.to_be_bytes());
        queue_offset = queue_offset.wrapping_add(1);
        log_offset = log_offset.wrapping_add(size as i64);
    }
    Ok((PyBytes::new(py, &data), PyBytes::new(py, &units)))
}

/// Write a template of an item with its values, which follow it. Several numbers may be one value.
fn fill(out: &mut Vec<u8>, item: &Bound<'_, PyTuple>, index: usize) -> PyResult<()> {
    let template = item.get_item(index)?.cast_into::<PyBytes>()?;
    let values = item.get_item(index + 1)?.cast_into::<PyTuple>()?;
    let mut rest = template.as_bytes();
    let mut used = 0;
    while let Some(at) = rest.iter().position(|&byte| byte == b'%') {
        out.extend_from_slice(&rest[..at]);
        match rest.get(at + 1) {
            Some(b'%') => out.push(b'%'),
            Some(b'd' | b'b') => {
                push_value(out, &values.get_item(used)?)?;
                used += 1;
            }
            _ => {
                return Err(PyValueError::new_err(
                    "a template with another form than %d, %b",
                ));
            }
        }
        rest = &rest[at + 2..];
    }
    out.extend_from_slice(rest);
    if used < values.len() {
        return Err(PyTypeError::new_err("a template with too many values"));
    }
    Ok(())
}

/// Write bytes, a number, or several numbers joined by commas.
pub fn push_value(out: &mut Vec<u8>, value: &Bound<'_, PyAny>) -> PyResult<()> {
    if value.is_instance_of::<PyInt>() {
        match value.extract::<i64>() {
            Ok(number) => push_number(out, number),
            Err(_) => out.extend_from_slice(value.str()?.to_str()?.as_bytes()), // over 64 bits
        }
        return Ok(());
    }
    if let Ok(bytes) = value.cast::<PyBytes>() {
        out.extend_from_slice(bytes.as_bytes());
        return Ok(());
    }
    let start = out.len();
    match value.cast::<PyRange>() {
        Ok(range) if range.step()? == 1 => {
            push_range(out, range.start()? as i64, range.stop()? as i64);
        }
        _ => {
            for number in value.try_iter()? {
                push_number(out, number?.extract()?);
                out.push(b',');
            }
        }
    }
    if out.len() > start {
        out.pop();
    }
    Ok(())
}

/// Write neighbouring numbers, each with a comma behind it.
///
/// Most differ from the one before in the last digit only. A copy of fixed size needs no call.
fn push_range(out: &mut Vec<u8>, start: i64, stop: i64) {
    let mut text = [b','; RANGE_TEXT_BYTES];
    let mut size = 0; // of the digits
    for number in start..stop {
        if number > 0 && size > 0 && text[size - 1] < b'9' {
            text[size - 1] += 1;
        } else {
            let mut digits = itoa::Buffer::new();
            let digits = digits.format(number).as_bytes();
            text[..digits.len()].copy_from_slice(digits);
            text[digits.len()] = b',';
            size = digits.len();
        }
        let end = out.len() + size + 1;
        out.extend_from_slice(&text);
        out.truncate(end);
    }
}

pub fn push_number(out: &mut Vec<u8>, number: i64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// Return `Unencodable`, as the twin raises it.
fn unencodable(py: Python<'_>, problem: String) -> PyResult<PyErr> {
    let class = py.import("downrange.errors")?.getattr("Unencodable")?;
    Ok(PyErr::from_value(
        class.call1(("record properties", problem))?,
    ))
}
