//! Records in the body of a pull reply, as columns. Twin: `usual_records` in
//! `downrange/wire/reply_messages.py`.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

const MAGIC_V1: i32 = 0xDAA3_20A7_u32 as i32;
const COMPRESSED: i32 = 0x1;
const BORN_V6: i32 = 0x10;
const STORE_V6: i32 = 0x20;
/// Both bits: the record is a batch of messages, which is unwrapped in Python.
const INNER: i32 = 0x40 | 0x80;
/// The fixed part with two addresses of IPv6: the twin reads that many bytes at once.
const FIXED_BYTES_MAX: usize = FIXED_BYTES + 24;
const FIXED_BYTES: usize = 88;
const TOPIC_BYTES_MAX: usize = 127;

/// The end of the run, whether a body is compressed, then a list for each column.
type Columns<'py> = (
    usize,
    bool,
    Bound<'py, PyList>,
    Bound<'py, PyList>,
    Bound<'py, PyList>,
    Bound<'py, PyList>,
    Bound<'py, PyList>,
);

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(usual_records, module)?)
}

/// Read records from a position on, up to the first one that is not of the usual form.
#[pyfunction]
fn usual_records<'py>(
    data: &Bound<'py, PyBytes>,
    at: usize,
    queue_of: &Bound<'py, PyAny>,
) -> PyResult<Columns<'py>> {
    let py = data.py();
    let bytes = data.as_bytes();
    let (mut fixed, mut properties, mut bodies) = (Vec::new(), Vec::new(), Vec::new());
    let (mut queues, mut offsets) = (Vec::new(), Vec::new());
    let mut is_compressed = false;
    let mut queue: Option<(&[u8], i32, Bound<'py, PyAny>)> = None;
    let mut at = at;
    while let Some(record) = record_at(bytes, at) {
        is_compressed |= record.sys_flag & COMPRESSED != 0;
        let own = match &queue {
            Some((topic, number, known))
                if *number == record.queue_id && *topic == record.topic =>
            {
                known.clone()
            }
            _ => {
                let made = queue_of.call1((PyBytes::new(py, record.topic), record.queue_id))?;
                queue = Some((record.topic, record.queue_id, made.clone()));
                made
            }
        };
        fixed.push(PyBytes::new(py, record.fixed));
        properties.push(PyBytes::new(py, record.properties));
        bodies.push(PyBytes::new(py, record.body));
        queues.push(own);
        offsets.push(record.queue_offset);
        at += record.size;
    }
    Ok((
        at,
        is_compressed,
        PyList::new(py, fixed)?,
        PyList::new(py, properties)?,
        PyList::new(py, bodies)?,
        PyList::new(py, queues)?,
        PyList::new(py, offsets)?,
    ))
}

/// The parts of a record.
struct Record<'a> {
    size: usize,
    fixed: &'a [u8],
    body: &'a [u8],
    topic: &'a [u8],
    properties: &'a [u8],
    queue_id: i32,
    queue_offset: i64,
    sys_flag: i32,
}

/// Read one record; None if it is damaged, cut off, close to the end of the data, has a long topic
/// (V2) or is an inner batch.
fn record_at(data: &[u8], at: usize) -> Option<Record<'_>> {
    let rest = data.get(at..)?;
    if rest.len() < FIXED_BYTES_MAX {
        return None;
    }
    let sys_flag = i32_at(rest, 36)?;
    if sys_flag & INNER == INNER || i32_at(rest, 4)? != MAGIC_V1 {
        return None;
    }
    let born_more = if sys_flag & BORN_V6 != 0 { 12 } else { 0 };
    let store_more = if sys_flag & STORE_V6 != 0 { 12 } else { 0 };
    let fixed_size = FIXED_BYTES + born_more + store_more;
    let record = rest.get(..usize::try_from(i32_at(rest, 0)?).ok()?)?;
    let (fixed, variable) = record.split_at_checked(fixed_size)?;
    let body_size = usize::try_from(i32_at(fixed, fixed_size - 4)?).ok()?;
    let (body, tail) = variable.split_at_checked(body_size)?;
    let (&topic_size, tail) = tail.split_first()?;
    let topic_size = usize::from(topic_size);
    let (topic, tail) = tail.split_at_checked(topic_size)?;
    let (properties_size, properties) = tail.split_first_chunk()?;
    let properties_size = usize::try_from(i16::from_be_bytes(*properties_size)).ok()?;
    if properties_size != properties.len() || topic_size > TOPIC_BYTES_MAX {
        return None;
    }
    Some(Record {
        size: record.len(),
        fixed,
        body,
        topic,
        properties,
        queue_id: i32_at(fixed, 12)?,
        queue_offset: i64::from_be_bytes(*fixed.get(20..)?.first_chunk()?),
        sys_flag,
    })
}

fn i32_at(data: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(*data.get(at..)?.first_chunk()?))
}
