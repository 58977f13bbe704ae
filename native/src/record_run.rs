//! Records that are stored together, as columns: the plain sends of one read, one batch, or the ends
//! of transactions. Twins: `PureSendRun` in `downrange/wire/send_runs.py`, `RecordBatch` in
//! `downrange/wire/batches.py`, `PureEndedRun` in `downrange/wire/ended_runs.py`; the protocols
//! `RecordRun`, `SendRun`, `BatchRun` and `EndedRun` there describe the methods.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyString};

use crate::ended_runs;
use crate::key_entries::{add_entries, hash_of};
use crate::properties::Span;
use crate::records::{Record, Shared};
use crate::replies::{Form, Stored, push_hex};
use crate::waiting::{self, LONG_COUNT, LONG_HASH_BYTES, LONG_WRITE_BYTES};

/// The size of a unit of a queue index: log offset, size, hash of the tag.
const UNIT_BYTES: usize = 20;
/// What a reply of usual length takes.
const REPLY_BYTES: usize = 320;

/// One message, and the place of its record once that is written.
#[derive(Default)]
pub struct Message {
    /// The number of its queue in the run.
    pub queue: u16,
    /// The number of the queue that the client named.
    pub asked: u16,
    pub request_id: i32,
    pub is_oneway: bool,
    pub flag: i32,
    pub sys_flag: i32,
    pub born_ms: i64,
    pub reconsume_times: i32,
    pub prepared_offset: i64,
    /// These are in the data. An empty `born` stands for the shared one.
    pub born: Span,
    pub body: Span,
    /// These are in the texts.
    pub properties: Span,
    pub last_properties: Span,
    pub unique_key: Span,
    pub keys: Span,
    pub tags: Span,
    pub group: Span,
    pub log_offset: i64,
    pub queue_offset: i64,
    pub size: i32,
}

/// The bytes that bodies are in.
pub enum Data {
    /// Those of a read, or of a batch.
    Read(PyBackedBytes),
    /// Those of half messages.
    Own(Vec<u8>),
    Released,
}

/// Where the property strings are.
pub enum Texts {
    /// Copied out of headers.
    Own(Vec<u8>),
    /// In the data.
    InData,
}

/// One queue of a run.
pub struct Queue {
    pub topic: Vec<u8>,
    pub queue_id: i32,
    /// How many messages it gets.
    pub count: usize,
    first_offset: i64,
    written_bytes: usize,
}

impl Queue {
    pub fn new(topic: &[u8], queue_id: i32) -> Self {
        Queue {
            topic: topic.to_vec(),
            queue_id,
            count: 0,
            first_offset: 0,
            written_bytes: 0,
        }
    }
}

/// See the first lines of this file.
#[pyclass(module = "downrange._native")]
pub struct RecordRun {
    pub data: Data,
    pub texts: Texts,
    /// Whether all messages came with one request.
    pub is_batch: bool,
    pub messages: Vec<Message>,
    pub queues: Vec<Queue>,
    /// The queues that the clients of half messages named.
    pub asked_queues: Vec<Queue>,
    pub shared: Shared,
    /// Where the frames of the sends are in the data.
    pub frames: Span,
    pub is_binary: bool,
    #[pyo3(get)]
    pub is_flush_awaited: bool,
    /// How many messages are written.
    written: usize,
}

impl RecordRun {
    pub fn new(data: Data, texts: Texts) -> Self {
        RecordRun {
            data,
            texts,
            is_batch: false,
            messages: Vec::new(),
            queues: Vec::new(),
            asked_queues: Vec::new(),
            shared: Shared::default(),
            frames: Span::default(),
            is_binary: false,
            is_flush_awaited: true,
            written: 0,
        }
    }

    fn data(&self) -> PyResult<&[u8]> {
        self.data.bytes()
    }

    fn texts(&self) -> PyResult<&[u8]> {
        self.texts.bytes(&self.data)
    }

    /// The queues that the clients named.
    fn asked(&self) -> &[Queue] {
        if self.asked_queues.is_empty() {
            &self.queues
        } else {
            &self.asked_queues
        }
    }

    /// Whether it is long to hash a text of each message, of which this is the size.
    fn is_long_to_hash(&self, text_bytes: impl Fn(&Message) -> usize) -> bool {
        self.messages.len() > LONG_COUNT
            || self.messages.iter().map(text_bytes).sum::<usize>() > LONG_HASH_BYTES
    }

    /// Set the places of the unwritten records that fit.
    ///
    /// Returns how many messages have a place now, the bytes of the new ones, and the size of the
    /// first that does not fit, or 0.
    fn lay_out(&mut self, log_offset: i64, room: i64) -> PyResult<(usize, usize, usize)> {
        let room = usize::try_from(room).unwrap_or(0);
        let texts = self.texts.bytes(&self.data)?;
        let mut next: Vec<i64> = self.queues.iter().map(|queue| queue.first_offset).collect();
        for message in &self.messages[..self.written] {
            next[usize::from(message.queue)] += 1;
        }
        let mut used = 0;
        let mut laid_out = self.written;
        for message in &mut self.messages[self.written..] {
            let number = usize::from(message.queue);
            let queue = &mut self.queues[number];
            let properties = message.properties.of(texts);
            let body_bytes = message.body.len();
            let shared = &self.shared;
            let born_bytes = match message.born.len() {
                0 => shared.born.len(),
                own => own,
            };
            let size = shared.size_of(
                born_bytes,
                body_bytes,
                queue.topic.len(),
                properties,
                message.last_properties.len(),
            );
            if size > room - used {
                return Ok((laid_out, used, size));
            }
            message.size = size as i32;
            message.log_offset = log_offset.wrapping_add(used as i64);
            message.queue_offset = next[number];
            queue.written_bytes += size;
            next[number] += 1;
            used += size;
            laid_out += 1;
        }
        Ok((laid_out, used, 0))
    }

    /// Write records that have their places, back to back.
    fn write(&self, mut out: &mut [u8], messages: &[Message], data: &[u8], texts: &[u8]) {
        for message in messages {
            let queue = &self.queues[usize::from(message.queue)];
            let record = Record {
                topic: &queue.topic,
                queue_id: queue.queue_id,
                flag: message.flag,
                queue_offset: message.queue_offset,
                log_offset: message.log_offset,
                sys_flag: message.sys_flag,
                born_ms: message.born_ms,
                born: match message.born.len() {
                    0 => &self.shared.born,
                    _ => message.born.of(data),
                },
                reconsume_times: message.reconsume_times,
                prepared_offset: message.prepared_offset,
                body: message.body.of(data),
                properties: message.properties.of(texts),
                last_properties: message.last_properties.of(texts),
            };
            out = self.shared.write(out, &record, message.size);
        }
    }
}

impl Data {
    pub fn bytes(&self) -> PyResult<&[u8]> {
        match self {
            Data::Read(bytes) => Ok(bytes),
            Data::Own(bytes) => Ok(bytes),
            Data::Released => Err(released()),
        }
    }
}

impl Texts {
    fn bytes<'a>(&'a self, data: &'a Data) -> PyResult<&'a [u8]> {
        match self {
            Texts::Own(texts) => Ok(texts),
            Texts::InData => data.bytes(),
        }
    }
}

fn released() -> PyErr {
    PyValueError::new_err("the run was released")
}

/// A topic and the id of one of its queues.
type QueueKey<'py> = (Bound<'py, PyBytes>, i32);

/// See `HalfRecord` in `wire/send_runs.py`.
type Half<'py> = (
    i64,
    i64,
    Bound<'py, PyString>,
    Bound<'py, PyString>,
    i32,
    Bound<'py, PyBytes>,
);

fn keys_of<'py>(py: Python<'py>, queues: &[Queue]) -> Vec<QueueKey<'py>> {
    let key = |queue: &Queue| (PyBytes::new(py, &queue.topic), queue.queue_id);
    queues.iter().map(key).collect()
}

/// Return address and port as a record holds them; None if the address is neither IPv4 nor IPv6.
pub fn host((ip, port): (&[u8], i32)) -> Option<Vec<u8>> {
    matches!(ip.len(), 4 | 16).then(|| [ip, &port.to_be_bytes()].concat())
}

#[pymethods]
impl RecordRun {
    fn __len__(&self) -> usize {
        self.messages.len()
    }

    #[getter]
    fn end(&self) -> u32 {
        self.frames.end
    }

    #[getter]
    fn queues<'py>(&self, py: Python<'py>) -> Vec<QueueKey<'py>> {
        keys_of(py, &self.queues)
    }

    #[getter]
    fn is_half(&self) -> bool {
        !self.asked_queues.is_empty()
    }

    #[getter]
    fn asked_queues<'py>(&self, py: Python<'py>) -> Vec<QueueKey<'py>> {
        keys_of(py, self.asked())
    }

    #[getter]
    fn counts(&self) -> Vec<usize> {
        self.queues.iter().map(|queue| queue.count).collect()
    }

    #[getter]
    fn queue_offsets(&self) -> Vec<i64> {
        self.queues.iter().map(|queue| queue.first_offset).collect()
    }

    #[getter]
    fn queue_bytes(&self) -> Vec<usize> {
        self.queues
            .iter()
            .map(|queue| queue.written_bytes)
            .collect()
    }

    #[getter]
    fn requests(&self) -> usize {
        if self.is_batch {
            1
        } else {
            self.messages.len()
        }
    }

    #[getter]
    fn has_nul(&self) -> bool {
        false // such a message was left to Python
    }

    #[getter]
    fn reply_count(&self) -> usize {
        let is_answered = |message: &&Message| !message.is_oneway;
        self.messages.iter().filter(is_answered).count()
    }

    #[getter]
    fn body_bytes_max(&self) -> usize {
        let size = |message: &Message| message.body.len();
        self.messages.iter().map(size).max().unwrap_or(0)
    }

    #[getter]
    fn property_bytes_max(&self) -> usize {
        let size = |message: &Message| message.properties.len() + message.last_properties.len();
        self.messages.iter().map(size).max().unwrap_or(0)
    }

    fn frames<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, self.frames.of(self.data()?)))
    }

    fn prepare(
        &mut self,
        born: (PyBackedBytes, i32),
        store: (PyBackedBytes, i32),
        sys_flag: i32,
        properties: &[u8],
    ) -> PyResult<()> {
        let wrong = || PyValueError::new_err("a host is neither IPv4 nor IPv6");
        self.shared.born = host((&born.0, born.1)).ok_or_else(wrong)?;
        self.shared.store = host((&store.0, store.1)).ok_or_else(wrong)?;
        self.shared.sys_flag = sys_flag;
        self.shared.properties = properties.to_vec();
        Ok(())
    }

    fn begin(&mut self, store_ms: i64, queue_offsets: Vec<i64>) -> PyResult<()> {
        if queue_offsets.len() != self.queues.len() {
            return Err(PyValueError::new_err("one offset per queue is needed"));
        }
        for (queue, offset) in self.queues.iter_mut().zip(queue_offsets) {
            queue.first_offset = offset;
            queue.written_bytes = 0;
        }
        self.shared.store_ms = store_ms;
        self.written = 0;
        Ok(())
    }

    fn encode<'py>(
        &mut self,
        py: Python<'py>,
        log_offset: i64,
        room: i64,
    ) -> PyResult<(Vec<Bound<'py, PyBytes>>, usize)> {
        let (laid_out, used, unfit) = self.lay_out(log_offset, room)?;
        let (data, texts) = (self.data()?, self.texts()?);
        let messages = &self.messages[self.written..laid_out];
        if messages.is_empty() {
            return Ok((Vec::new(), unfit));
        }
        let this = &*self;
        let bytes = PyBytes::new_with(py, used, |out| {
            let is_long = used > LONG_WRITE_BYTES;
            waiting::run(py, is_long, || this.write(out, messages, data, texts));
            Ok(())
        })?;
        self.written = laid_out;
        Ok((vec![bytes], unfit))
    }

    fn queue_units<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let texts = self.texts()?;
        let room = |queue: &Queue| Vec::with_capacity(queue.count * UNIT_BYTES);
        let mut units: Vec<Vec<u8>> = self.queues.iter().map(room).collect();
        let is_long = self.is_long_to_hash(|message| message.tags.len());
        waiting::run(py, is_long, || {
            for message in &self.messages {
                let unit = &mut units[usize::from(message.queue)];
                let hash = hash_of(0, message.tags.of(texts)) as i32;
                unit.extend_from_slice(&message.log_offset.to_be_bytes());
                unit.extend_from_slice(&message.size.to_be_bytes());
                unit.extend_from_slice(&i64::from(hash).to_be_bytes());
            }
        });
        Ok(units.iter().map(|unit| PyBytes::new(py, unit)).collect())
    }

    fn key_entries<'py>(
        &self,
        py: Python<'py>,
        fronts: Vec<u32>,
        index_tags: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let texts = self.texts()?;
        if fronts.len() != self.queues.len() {
            return Err(PyValueError::new_err("one front per queue is needed"));
        }
        let mut entries = Vec::with_capacity(self.messages.len() * 2 * 12);
        let is_long = self.is_long_to_hash(|message| {
            message.unique_key.len() + message.keys.len() + message.tags.len()
        });
        waiting::run(py, is_long, || {
            for message in &self.messages {
                add_entries(
                    &mut entries,
                    fronts[usize::from(message.queue)],
                    message.log_offset,
                    message.unique_key.of(texts),
                    message.keys.of(texts),
                    if index_tags {
                        message.tags.of(texts)
                    } else {
                        b""
                    },
                );
            }
        });
        Ok(PyBytes::new(py, &entries))
    }

    fn halves<'py>(&self, py: Python<'py>) -> PyResult<Vec<(i64, Half<'py>)>> {
        if !self.is_half() {
            return Ok(Vec::new());
        }
        let (data, texts) = (self.data()?, self.texts()?);
        let half = |message: &Message| {
            let size = message.size as usize;
            let record = PyBytes::new_with(py, size, |out| {
                let one = std::slice::from_ref(message);
                waiting::run(py, size > LONG_WRITE_BYTES, || {
                    self.write(out, one, data, texts);
                });
                Ok(())
            })?;
            let half = (
                message.queue_offset,
                message.born_ms,
                PyString::from_bytes(py, message.group.of(texts))?,
                PyString::from_bytes(py, &self.asked_queues[usize::from(message.asked)].topic)?,
                self.asked_queues[usize::from(message.asked)].queue_id,
                record,
            );
            Ok((message.log_offset, half))
        };
        self.messages[..self.written].iter().map(half).collect()
    }

    fn add_end(
        &mut self,
        half: Option<&[u8]>,
        topic: &str,
        queue_id: i32,
        offset: i64,
        now_ms: i64,
    ) -> PyResult<()> {
        ended_runs::add_end(self, half, (topic.as_bytes(), queue_id), offset, now_ms)
            .ok_or_else(|| PyValueError::new_err("these are not the bytes of a half message"))
    }

    fn release(&mut self) {
        self.data = Data::Released;
    }

    fn replies<'py>(
        &self,
        py: Python<'py>,
        form: &Bound<'py, PyAny>,
        code: i32,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let form = Form::new(form, self.is_binary)?;
        let texts = self.texts()?;
        let mut out = Vec::with_capacity(self.messages.len() * REPLY_BYTES);
        let is_long = self.messages.len() > LONG_COUNT / 4;
        let asked_queues = self.asked();
        waiting::run(py, is_long, || {
            for message in self.messages.iter().filter(|message| !message.is_oneway) {
                let stored = Stored {
                    request_id: message.request_id,
                    queue_id: asked_queues[usize::from(message.asked)].queue_id,
                    unique_key: message.unique_key.of(texts),
                    log_offset: message.log_offset,
                    queue_offset: message.queue_offset,
                };
                form.write(&mut out, &stored, code);
            }
        });
        Ok(PyBytes::new(py, &out))
    }

    fn ids(&self, py: Python<'_>, prefix: &str) -> PyResult<String> {
        let mut ids = Vec::with_capacity(self.messages.len() * (prefix.len() + 17));
        waiting::run(py, self.messages.len() > LONG_COUNT, || {
            for message in &self.messages {
                if !ids.is_empty() {
                    ids.push(b',');
                }
                ids.extend_from_slice(prefix.as_bytes());
                push_hex(&mut ids, message.log_offset);
            }
        });
        Ok(String::from_utf8(ids)?)
    }
}
