//! What the indexes need of the records of a log. Twin: `index_run` in
//! `downrange/store/indexed_run.py`, with `intact_run` in `downrange/wire/records.py`.

use std::borrow::Cow;
use std::collections::HashMap;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::hashes::{hash_ascii, hash_text, never_negative};

const MAGIC_V1: i32 = -626_843_481;
const PREPARED: i32 = 4;
const BORN_V6: i32 = 1 << 4;
const STORE_V6: i32 = 1 << 5;
const FIXED_BYTES_MIN: usize = 88;
const FIXED_BYTES_MAX: usize = 112;
const V6_BYTES_MORE: usize = 12;
const TOPIC_BYTES_MAX: usize = 127;
const PROPERTIES_BYTES_MAX: usize = 32_767;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(index_run, module)?)
}

/// Topic, queue id, offset of the first record, units.
type QueueUnits<'py> = (Bound<'py, PyBytes>, i32, i64, Bound<'py, PyBytes>);
type Keys<'py> = Vec<(i64, Bound<'py, PyBytes>)>;

/// Return what the indexes need of the records from a position on.
#[pyfunction]
fn index_run<'py>(
    py: Python<'py>,
    data: &[u8],
    at: usize,
    log_offset: i64,
    keys_end: i64,
    index_tags: bool,
    delay_topic: &[u8],
) -> (usize, usize, i64, Vec<QueueUnits<'py>>, Keys<'py>) {
    let run = py.detach(|| Run::read(data, at, log_offset, keys_end, index_tags, delay_topic));
    let queues = run.queues.iter().map(|queue| {
        (
            PyBytes::new(py, queue.topic),
            queue.queue_id,
            queue.first_offset,
            PyBytes::new(py, &queue.units),
        )
    });
    let keys = run.keys.iter().filter(|(_, entries)| !entries.is_empty());
    let keys = keys.map(|(store_ms, entries)| (*store_ms, PyBytes::new(py, entries)));
    let last_ms = run.last_ms;
    (
        run.count,
        run.size,
        last_ms,
        queues.collect(),
        keys.collect(),
    )
}

/// The records of one queue, whose offsets follow each other.
struct Queue<'a> {
    topic: &'a [u8],
    queue_id: i32,
    key_front: u32,
    first_offset: i64,
    /// None behind the largest number: no record can continue the queue.
    next_offset: Option<i64>,
    units: Vec<u8>,
}

#[derive(Default)]
struct Run<'a> {
    count: usize,
    size: usize,
    last_ms: i64,
    queues: Vec<Queue<'a>>,
    numbers: HashMap<(&'a [u8], i32), usize>,
    keys: Vec<(i64, Vec<u8>)>,
}

impl<'a> Run<'a> {
    fn read(
        data: &'a [u8],
        at: usize,
        mut log_offset: i64,
        keys_end: i64,
        index_tags: bool,
        delay_topic: &[u8],
    ) -> Self {
        let mut run = Self::default();
        let mut rest = data.get(at..).unwrap_or_default();
        while let Some(record) = Record::parse(rest, log_offset) {
            if record.sys_flag & PREPARED == 0 {
                if record.topic == delay_topic || !record.topic.is_ascii() {
                    break;
                }
                let Some(front) = run.add_unit(&record, log_offset) else {
                    break;
                };
                if log_offset > keys_end {
                    run.add_keys(&record, log_offset, front, index_tags);
                }
            }
            run.count += 1;
            run.size += record.size;
            run.last_ms = run.last_ms.max(record.store_ms);
            let Some(next) = log_offset.checked_add(record.size as i64) else {
                break; // no record has a place behind this one
            };
            log_offset = next;
            rest = &rest[record.size..];
        }
        run
    }

    /// Add the unit of a record, and return the hash behind which those of its keys follow; None if
    /// the record does not continue its queue.
    fn add_unit(&mut self, record: &Record<'a>, log_offset: i64) -> Option<u32> {
        let key = (record.topic, record.queue_id);
        let number = *self.numbers.entry(key).or_insert(self.queues.len());
        if number == self.queues.len() {
            self.queues.push(Queue {
                topic: record.topic,
                queue_id: record.queue_id,
                key_front: hash_ascii(hash_ascii(0, record.topic), b"#"),
                first_offset: record.queue_offset,
                next_offset: Some(record.queue_offset),
                units: Vec::new(),
            });
        }
        let queue = self.queues.get_mut(number)?;
        if queue.next_offset != Some(record.queue_offset) {
            return None;
        }
        queue.next_offset = record.queue_offset.checked_add(1);
        let tag = record
            .tag
            .as_deref()
            .map_or(0, |tag| hash_text(0, tag) as i32);
        queue.units.extend_from_slice(&log_offset.to_be_bytes());
        queue
            .units
            .extend_from_slice(&(record.size as i32).to_be_bytes());
        queue.units.extend_from_slice(&i64::from(tag).to_be_bytes());
        Some(queue.key_front)
    }

    fn add_keys(&mut self, record: &Record<'a>, log_offset: i64, front: u32, index_tags: bool) {
        if self
            .keys
            .last()
            .is_none_or(|(store_ms, _)| *store_ms != record.store_ms)
        {
            self.keys.push((record.store_ms, Vec::new()));
        }
        let Some((_, entries)) = self.keys.last_mut() else {
            return;
        };
        let mut add = |hash: u32| {
            entries.extend_from_slice(&never_negative(hash).to_ne_bytes());
            entries.extend_from_slice(&log_offset.to_ne_bytes());
        };
        if let Some(key) = &record.unique_key {
            add(hash_text(front, key));
        }
        for key in record.keys.iter().flat_map(|keys| keys.split(' ')) {
            if !key.is_empty() {
                add(hash_text(front, key));
            }
        }
        if let Some(tag) = record.tag.as_deref().filter(|_| index_tags) {
            add(hash_text(hash_ascii(front, b"T#"), tag));
        }
    }
}

struct Record<'a> {
    size: usize,
    queue_id: i32,
    queue_offset: i64,
    sys_flag: i32,
    store_ms: i64,
    topic: &'a [u8],
    unique_key: Option<Cow<'a, str>>,
    keys: Option<Cow<'a, str>>,
    tag: Option<Cow<'a, str>>,
}

impl<'a> Record<'a> {
    /// Read the record at the begin of some bytes; None if it is not of the usual form.
    fn parse(data: &'a [u8], log_offset: i64) -> Option<Self> {
        if data.len() < FIXED_BYTES_MAX {
            return None;
        }
        let sys_flag = int32(data, 36)?;
        let born_more = if sys_flag & BORN_V6 == 0 {
            0
        } else {
            V6_BYTES_MORE
        };
        let store_more = if sys_flag & STORE_V6 == 0 {
            0
        } else {
            V6_BYTES_MORE
        };
        let body_at = FIXED_BYTES_MIN + born_more + store_more;
        let size = usize::try_from(int32(data, 0)?).ok()?;
        let body_size = usize::try_from(int32(data, body_at - 4)?).ok()?;
        if int32(data, 4)? != MAGIC_V1 || int64(data, 28)? != log_offset {
            return None;
        }
        let record = data.get(..size)?;
        let body = record.get(body_at..)?.get(..body_size)?;
        let (&topic_size, rest) = record.get(body_at + body_size..)?.split_first()?;
        let (topic, rest) = rest.split_at_checked(topic_size.into())?;
        let (properties_size, properties) = rest.split_at_checked(2)?;
        let properties_size = u16::from_be_bytes(*properties_size.first_chunk()?);
        if topic.len() > TOPIC_BYTES_MAX
            || properties.len() > PROPERTIES_BYTES_MAX
            || properties.len() != usize::from(properties_size)
            || (crc32fast::hash(body) & 0x7fff_ffff) as i32 != int32(data, 8)?
            || properties.contains(&0)
        {
            return None;
        }
        let mut found = Self {
            size,
            queue_id: int32(data, 12)?,
            queue_offset: int64(data, 20)?,
            sys_flag,
            store_ms: int64(data, 52 + born_more + 4)?,
            topic,
            unique_key: None,
            keys: None,
            tag: None,
        };
        found.read_properties(properties);
        Some(found)
    }

    /// Note those that the indexes need; the last one that is not empty counts.
    fn read_properties(&mut self, properties: &'a [u8]) {
        for item in properties.split(|&byte| byte == 2) {
            let Some(end) = item.iter().position(|&byte| byte == 1) else {
                continue;
            };
            let (name, value) = (&item[..end], &item[end + 1..]);
            let target = match name {
                b"UNIQ_KEY" => &mut self.unique_key,
                b"KEYS" => &mut self.keys,
                b"TAGS" => &mut self.tag,
                _ => continue,
            };
            if !value.is_empty() {
                *target = Some(String::from_utf8_lossy(value));
            }
        }
    }
}

fn int32(data: &[u8], at: usize) -> Option<i32> {
    Some(i32::from_be_bytes(*data.get(at..)?.first_chunk()?))
}

fn int64(data: &[u8], at: usize) -> Option<i64> {
    Some(i64::from_be_bytes(*data.get(at..)?.first_chunk()?))
}
