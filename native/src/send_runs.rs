//! Takes plain sends out of read bytes, and the messages out of a batch. Twins: `take_sends` in
//! `downrange/wire/send_runs.py` and `record_batch` in `downrange/wire/batches.py`. What is unusual
//! or damaged is left to Python: a run ends before it, a batch is `None`.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;

use crate::json::Text;
use crate::properties::{Known, Span, look_at};
use crate::record_run::{Data, Message, Queue, RecordRun, Texts, host};
use crate::send_headers;
use crate::waiting::{self, LONG_READ_BYTES};

/// The bits of `sysFlag` that a client may set; see `CLIENT_FLAGS` in `wire/codes.py`.
const CLIENT_FLAGS: i32 = 0x703;
const V6_BITS: i32 = 0x30;
const BORN_V6: i32 = 0x10;
const STORE_V6: i32 = 0x20;
const QUEUES_MAX: usize = 64;
const KEY_BYTES_MAX: usize = 256;
const TOPIC_BYTES_MAX: usize = 127;
const BINARY: u32 = 1;
/// Where half messages wait: queue 0 of this topic.
const HALF_TOPIC: &[u8] = b"RMQ_SYS_TRANS_HALF_TOPIC";
/// The fixed part of a message in a batch.
const ITEM_BYTES: usize = 20;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<RecordRun>()?;
    module.add_function(wrap_pyfunction!(take_sends, module)?)?;
    module.add_function(wrap_pyfunction!(take_batch, module)?)
}

/// A frame: its codec, where its body begins, and where it ends.
struct Frame {
    is_binary: bool,
    body_at: usize,
    end: usize,
}

/// Find the whole frame that begins at a position.
fn frame_at(data: &[u8], at: usize, length_max: usize) -> Option<Frame> {
    let (words, _) = data.get(at..)?.split_first_chunk::<8>()?;
    let length = u32::from_be_bytes([words[0], words[1], words[2], words[3]]) as usize;
    let codec = u32::from(words[4]);
    let header = u32::from_be_bytes([0, words[5], words[6], words[7]]) as usize;
    if codec > BINARY || length > length_max || header + 4 > length {
        return None;
    }
    let end = at + 4 + length;
    (end <= data.len()).then_some(Frame {
        is_binary: codec == BINARY,
        body_at: at + 8 + header,
        end,
    })
}

/// Take the plain sends that begin at a position, as far as they are whole.
#[pyfunction]
fn take_sends(
    py: Python<'_>,
    data: PyBackedBytes,
    start: usize,
    length_max: usize,
) -> Option<RecordRun> {
    u32::try_from(data.len()).ok()?;
    let first = frame_at(&data, start, length_max)?;
    let is_binary = first.is_binary;
    let is_long = data.len().saturating_sub(start) > LONG_READ_BYTES;
    let sends = waiting::run(py, is_long, || {
        let mut sends = Sends::new(&data, start);
        sends.take(first, length_max);
        sends
    });
    if sends.messages.is_empty() {
        return None;
    }
    let (messages, queues, end) = (sends.messages, sends.queues, sends.end);
    let (texts, is_flush_awaited) = (sends.texts, sends.is_flush_awaited);
    let is_half = sends.is_half;
    let mut run = RecordRun::new(Data::Read(data), Texts::Own(texts));
    if is_half {
        let mut half_queue = Queue::new(HALF_TOPIC, 0);
        half_queue.count = messages.len();
        run.queues = vec![half_queue];
        run.asked_queues = queues;
    } else {
        run.queues = queues;
    }
    run.messages = messages;
    run.frames = Span::new(start, end);
    run.is_binary = is_binary;
    run.is_flush_awaited = is_flush_awaited;
    Some(run)
}

/// The sends of a run so far.
struct Sends<'a> {
    data: &'a [u8],
    texts: Vec<u8>,
    messages: Vec<Message>,
    queues: Vec<Queue>,
    is_flush_awaited: bool,
    is_half: bool,
    end: usize,
}

impl<'a> Sends<'a> {
    fn new(data: &'a [u8], start: usize) -> Self {
        Sends {
            data,
            texts: Vec::new(),
            messages: Vec::new(),
            queues: Vec::new(),
            is_flush_awaited: true,
            is_half: false,
            end: start,
        }
    }

    /// Take sends in from a frame on, as long as they are plain ones.
    fn take(&mut self, first: Frame, length_max: usize) {
        let is_binary = first.is_binary;
        let mut next = Some(first);
        while let Some(frame) = next.filter(|frame| frame.is_binary == is_binary) {
            let texts = self.texts.len();
            if self.add(self.end, &frame).is_none() {
                self.texts.truncate(texts);
                return;
            }
            self.end = frame.end;
            next = frame_at(self.data, self.end, length_max);
        }
    }

    /// Take a send in, if it is a plain one that fits this run. If not, only texts were added.
    fn add(&mut self, at: usize, frame: &Frame) -> Option<()> {
        if frame.body_at == frame.end {
            return None;
        }
        let bytes = &self.data[at + 8..frame.body_at];
        let header = send_headers::read(bytes, frame.is_binary, &mut self.texts)?;
        let properties = match header.properties {
            Text::Unescaped(start, end) => Span::new(start, end),
            Text::AsIs(start, end) => {
                let begin = self.texts.len();
                self.texts.extend_from_slice(&bytes[start..end]);
                Span::new(begin, self.texts.len())
            }
        };
        u32::try_from(self.texts.len()).ok()?;
        let known = look_at(properties.of(&self.texts), properties.start as usize)?;
        let is_first = self.messages.is_empty();
        if known.is_unusual
            || (known.is_half && (known.is_unusual_half || known.group.len() == 0))
            || !is_plain_key(known.unique_key.of(&self.texts))
            || (!is_first && known.is_flush_awaited != self.is_flush_awaited)
            || (!is_first && known.is_half != self.is_half)
        {
            return None;
        }
        let topic = header.topic.of(bytes, &self.texts);
        let queue = number_of(&mut self.queues, topic, header.queue_id)?;
        self.queues[queue].count += 1;
        self.is_flush_awaited = known.is_flush_awaited;
        self.is_half = known.is_half;
        let mut last_properties = Span::default();
        if known.is_half {
            let begin = self.texts.len();
            add_half_properties(&mut self.texts, &known, &self.queues[queue]);
            u32::try_from(self.texts.len()).ok()?;
            last_properties = Span::new(begin, self.texts.len());
        }
        self.messages.push(Message {
            queue: if known.is_half { 0 } else { queue as u16 },
            asked: queue as u16,
            request_id: header.request_id,
            is_oneway: header.is_oneway,
            flag: header.flag,
            sys_flag: header.sys_flag & CLIENT_FLAGS,
            born_ms: header.born_ms,
            reconsume_times: header.reconsume_times,
            body: Span::new(frame.body_at, frame.end),
            properties,
            last_properties,
            unique_key: known.unique_key,
            keys: known.keys,
            tags: known.tags,
            group: known.group,
            ..Message::default()
        });
        Some(())
    }
}

/// Append what a half message has beside the properties of its message.
fn add_half_properties(texts: &mut Vec<u8>, known: &Known, queue: &Queue) {
    let key = known.unique_key;
    texts.extend_from_slice(b"__transactionId__\x01");
    texts.extend_from_within(key.start as usize..key.end as usize);
    texts.extend_from_slice(b"\x02REAL_TOPIC\x01");
    texts.extend_from_slice(&queue.topic);
    texts.extend_from_slice(b"\x02REAL_QID\x01");
    texts.extend_from_slice(itoa::Buffer::new().format(queue.queue_id).as_bytes());
    texts.push(2);
}

/// Return the number of a queue in a run, or None if it cannot be part of it.
fn number_of(queues: &mut Vec<Queue>, topic: &[u8], queue_id: i32) -> Option<usize> {
    let is_same = |queue: &Queue| queue.queue_id == queue_id && queue.topic == topic;
    if let Some(number) = queues.iter().position(is_same) {
        return Some(number);
    }
    if queues.len() == QUEUES_MAX || topic.is_empty() || topic.len() > TOPIC_BYTES_MAX {
        return None;
    }
    queues.push(Queue::new(topic, queue_id));
    Some(queues.len() - 1)
}

/// Whether a unique key can be written into a reply as it is.
fn is_plain_key(key: &[u8]) -> bool {
    let is_plain = |byte: &u8| matches!(byte, 0x20..=0x7e) && !matches!(byte, b'"' | b'\\');
    !key.is_empty() && key.len() <= KEY_BYTES_MAX && key.iter().all(is_plain)
}

/// Take the messages out of a batch.
#[pyfunction]
#[allow(clippy::too_many_arguments)] // the fields of a record that all messages share
fn take_batch(
    py: Python<'_>,
    data: PyBackedBytes,
    topic: &[u8],
    queue_id: i32,
    sys_flag: i32,
    born_ms: i64,
    born: (PyBackedBytes, i32),
    store: (PyBackedBytes, i32),
    reconsume_times: i32,
    prepared_offset: i64,
) -> Option<RecordRun> {
    u32::try_from(data.len()).ok()?;
    let host_bits = if born.0.len() == 16 { BORN_V6 } else { 0 }
        | if store.0.len() == 16 { STORE_V6 } else { 0 };
    if topic.len() > TOPIC_BYTES_MAX || sys_flag & V6_BITS != host_bits {
        return None;
    }
    let mut queue = Queue::new(topic, queue_id);
    let messages = waiting::run(py, data.len() > LONG_READ_BYTES, || {
        let mut messages = Vec::new();
        let mut at = 0;
        while at < data.len() {
            let message = batch_item(&data, at)?;
            at = message.properties.end as usize;
            messages.push(Message {
                sys_flag,
                born_ms,
                reconsume_times,
                prepared_offset,
                ..message
            });
        }
        Some(messages)
    })?;
    queue.count = messages.len();
    let mut run = RecordRun::new(Data::Read(data), Texts::InData);
    run.is_batch = true;
    run.messages = messages;
    run.queues = vec![queue];
    run.shared.born = host((&born.0, born.1))?;
    run.shared.store = host((&store.0, store.1))?;
    Some(run)
}

/// Read the message of a batch that begins at a position; its properties end it.
fn batch_item(data: &[u8], at: usize) -> Option<Message> {
    let (head, rest) = data[at..].split_first_chunk::<ITEM_BYTES>()?;
    let word = |at: usize| i32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
    let size = usize::try_from(word(0)).ok()?;
    let body_bytes = usize::try_from(word(16)).ok()?;
    let (length, _) = rest.get(body_bytes..)?.split_first_chunk::<2>()?;
    let property_bytes = usize::try_from(i16::from_be_bytes(*length)).ok()?;
    let body_at = at + ITEM_BYTES;
    let properties_at = body_at + body_bytes + 2;
    let end = properties_at + property_bytes;
    if end != at + size || end > data.len() {
        return None;
    }
    let known = look_at(&data[properties_at..end], properties_at)?;
    Some(Message {
        flag: word(12),
        body: Span::new(body_at, properties_at - 2),
        properties: Span::new(properties_at, end),
        unique_key: known.unique_key,
        keys: known.keys,
        tags: known.tags,
        ..Message::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(body: &[u8], properties: &[u8]) -> Vec<u8> {
        let mut item = Vec::new();
        let size = (ITEM_BYTES + body.len() + 2 + properties.len()) as i32;
        for word in [size, 0, 0, 7, body.len() as i32] {
            item.extend_from_slice(&word.to_be_bytes());
        }
        item.extend_from_slice(body);
        item.extend_from_slice(&(properties.len() as i16).to_be_bytes());
        item.extend_from_slice(properties);
        item
    }

    #[test]
    fn a_message_of_a_batch_is_found() {
        let data = [item(b"first", b""), item(b"", b"TAGS\x01t")].concat();
        let first = batch_item(&data, 0).unwrap();
        assert_eq!(first.body.of(&data), b"first");
        let second = batch_item(&data, first.properties.end as usize).unwrap();
        assert_eq!((second.flag, second.tags.of(&data)), (7, &b"t"[..]));
    }

    #[test]
    fn a_damaged_message_is_left_alone() {
        let data = item(b"body", b"KEYS\x01k");
        for end in 0..data.len() {
            assert!(batch_item(&data[..end], 0).is_none());
        }
        for at in [0, 1, 2, 3, 16, 17, 18, 19, 24, 25] {
            let mut damaged = data.clone();
            damaged[at] ^= 0x81;
            assert!(batch_item(&damaged, 0).is_none(), "{at}");
        }
    }

    #[test]
    fn a_frame_needs_possible_words() {
        let frame = [&8u32.to_be_bytes()[..], &[0, 0, 0, 2], b"hdbb"].concat();
        let found = frame_at(&frame, 0, 100).unwrap();
        assert_eq!((found.body_at, found.end, found.is_binary), (10, 12, false));
        assert!(frame_at(&frame, 0, 7).is_none());
        assert!(frame_at(&frame[..11], 0, 100).is_none());
        for (at, byte) in [(4, 2), (7, 5), (0, 0xff), (3, 3)] {
            let mut wrong = frame.clone();
            wrong[at] = byte;
            assert!(frame_at(&wrong, 0, usize::MAX).is_none(), "{at}");
        }
    }
}
