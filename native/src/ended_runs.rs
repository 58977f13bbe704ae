//! The ends of half messages that are stored together: committed messages and op records. Twins:
//! `ended_run` and `PureEndedRun` in `downrange/wire/ended_runs.py`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::properties::{Span, look_at};
use crate::record_run::{Data, Message, Queue, RecordRun, Texts, host};
use crate::records::MAGIC_V1;

const OP_TOPIC: &[u8] = b"RMQ_SYS_TRANS_OP_HALF_TOPIC";
const OP_PROPERTIES: &[u8] = b"TAGS\x01d\x02";
/// Where the value of the only property of an op record is.
const OP_TAG: std::ops::Range<usize> = 5..6;
/// `sysFlag` bits.
const COMMIT: i32 = 8;
const BORN_V6: i32 = 0x10;
const STORE_V6: i32 = 0x20;
/// What the body of an op record has at most.
const DIGITS_MAX: usize = 20;
const TOPIC_BYTES_MAX: usize = 127;
/// Positions in a record.
const MAGIC_AT: usize = 4;
const FLAG_AT: usize = 16;
const LOG_OFFSET_AT: usize = 28;
const SYS_FLAG_AT: usize = 36;
const BORN_MS_AT: usize = 40;
const BORN_AT: usize = 48;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(ended_run, module)?)
}

/// Return a run without records; `add_end` adds them.
#[pyfunction]
fn ended_run(store: (PyBackedBytes, i32)) -> PyResult<RecordRun> {
    let wrong = || PyValueError::new_err("a host is neither IPv4 nor IPv6");
    let store = host((&store.0, store.1)).ok_or_else(wrong)?;
    let mut run = RecordRun::new(Data::Own(OP_PROPERTIES.to_vec()), Texts::InData);
    run.shared.born = store.clone(); // of op records
    run.shared.store = store;
    Ok(run)
}

/// Add the message of a half that is committed, if it is, and the op record that ends it.
///
/// None if the bytes are not those of a half with this place; then nothing was added.
pub fn add_end(
    run: &mut RecordRun,
    half: Option<&[u8]>,
    place: (&[u8], i32),
    offset: i64,
    now_ms: i64,
) -> Option<()> {
    let Data::Own(data) = &mut run.data else {
        return None;
    };
    u16::try_from(run.queues.len() + 2).ok()?;
    u32::try_from(data.len() + half.map_or(0, <[u8]>::len) + DIGITS_MAX).ok()?;
    let is_v6 = run.shared.store.len() > 8;
    if let Some(half) = half {
        let message = committed(half, data.len(), place, is_v6)?;
        data.extend_from_slice(half);
        let queue = number_of(&mut run.queues, place.0, place.1);
        run.messages.push(Message { queue, ..message });
    }
    let begin = data.len();
    data.extend_from_slice(itoa::Buffer::new().format(offset).as_bytes());
    let queue = number_of(&mut run.queues, OP_TOPIC, 0);
    run.messages.push(Message {
        queue,
        sys_flag: if is_v6 { BORN_V6 | STORE_V6 } else { 0 },
        born_ms: now_ms,
        body: Span::new(begin, data.len()),
        properties: Span::new(0, OP_PROPERTIES.len()),
        tags: Span::new(OP_TAG.start, OP_TAG.end),
        ..Message::default()
    });
    Some(())
}

/// Return the number of a queue in the run; it gets one more message.
fn number_of(queues: &mut Vec<Queue>, topic: &[u8], queue_id: i32) -> u16 {
    let is_same = |queue: &Queue| queue.queue_id == queue_id && queue.topic == topic;
    let number = queues.iter().position(is_same).unwrap_or(queues.len());
    if number == queues.len() {
        queues.push(Queue::new(topic, queue_id));
    }
    queues[number].count += 1;
    number as u16
}

/// Return the message of a half whose record will begin at a position of the data.
fn committed(half: &[u8], at: usize, place: (&[u8], i32), is_v6: bool) -> Option<Message> {
    let half = half.get(..usize::try_from(i32_at(half, 0)?).ok()?)?;
    if i32_at(half, MAGIC_AT)? != MAGIC_V1 {
        return None;
    }
    let sys_flag = i32_at(half, SYS_FLAG_AT)?;
    let born_bytes = if sys_flag & BORN_V6 == 0 { 8 } else { 20 };
    let store_bytes = if sys_flag & STORE_V6 == 0 { 8 } else { 20 };
    // Behind the store host: reconsume times, the offset of another half, the body's length.
    let times_at = BORN_AT + born_bytes + 8 + store_bytes;
    let body_at = times_at + 16;
    let body_end = body_at + usize::try_from(i32_at(half, times_at + 12)?).ok()?;
    let topic_bytes = usize::from(*half.get(body_end)?);
    let (_, tail) = half.get(body_end + 1..)?.split_at_checked(topic_bytes)?;
    let (properties_bytes, properties) = tail.split_first_chunk()?;
    let properties_bytes = usize::try_from(i16::from_be_bytes(*properties_bytes)).ok()?;
    if topic_bytes > TOPIC_BYTES_MAX || properties_bytes != properties.len() {
        return None;
    }
    let properties_at = half.len() - properties.len();
    let mut end = Vec::with_capacity(64);
    end.extend_from_slice(b"REAL_TOPIC\x01");
    end.extend_from_slice(place.0);
    end.extend_from_slice(b"\x02REAL_QID\x01");
    end.extend_from_slice(itoa::Buffer::new().format(place.1).as_bytes());
    end.push(2);
    let properties = properties.strip_suffix(end.as_slice())?;
    let known = look_at(properties, at + properties_at)?;
    let store_bit = if is_v6 { STORE_V6 } else { 0 };
    Some(Message {
        flag: i32_at(half, FLAG_AT)?,
        sys_flag: sys_flag & !STORE_V6 | store_bit | COMMIT,
        born_ms: i64_at(half, BORN_MS_AT)?,
        reconsume_times: i32_at(half, times_at)?,
        prepared_offset: i64_at(half, LOG_OFFSET_AT)?,
        born: Span::new(at + BORN_AT, at + BORN_AT + born_bytes),
        body: Span::new(at + body_at, at + body_end),
        properties: Span::new(at + properties_at, at + properties_at + properties.len()),
        unique_key: known.unique_key,
        keys: known.keys,
        tags: known.tags,
        ..Message::default()
    })
}

fn i32_at(data: &[u8], at: usize) -> Option<i32> {
    let (word, _) = data.get(at..)?.split_first_chunk::<4>()?;
    Some(i32::from_be_bytes(*word))
}

fn i64_at(data: &[u8], at: usize) -> Option<i64> {
    let (word, _) = data.get(at..)?.split_first_chunk::<8>()?;
    Some(i64::from_be_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_half_is_refused() {
        for size in 0..200 {
            assert!(committed(&vec![0; size], 0, (b"T", 1), false).is_none());
            assert!(committed(&vec![0x7f; size], 0, (b"T", 1), false).is_none());
        }
    }
}
