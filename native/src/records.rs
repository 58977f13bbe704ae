//! Writes stored messages. Twin: `encode_parts` in `downrange/wire/records.py`, which has the
//! layout of a record.

pub const MAGIC_V1: i32 = -626_843_481;
/// The fixed part of a record without the two hosts, which are address and port.
const FIXED_BYTES: usize = 72;
const CRC_MASK: u32 = 0x7fff_ffff;

/// What all records of a run have in common.
#[derive(Default)]
pub struct Shared {
    /// Address and port of the producer, as a record holds them, for records without their own.
    pub born: Vec<u8>,
    /// The same of the broker.
    pub store: Vec<u8>,
    /// Bits of `sysFlag` that are added to those of each message.
    pub sys_flag: i32,
    pub store_ms: i64,
    /// Added to each property string; a separator is put before what follows a string without one.
    pub properties: Vec<u8>,
}

/// One record.
pub struct Record<'a> {
    pub topic: &'a [u8],
    pub queue_id: i32,
    pub flag: i32,
    pub queue_offset: i64,
    pub log_offset: i64,
    pub sys_flag: i32,
    pub born_ms: i64,
    pub born: &'a [u8],
    pub reconsume_times: i32,
    pub prepared_offset: i64,
    pub body: &'a [u8],
    pub properties: &'a [u8],
    /// Properties behind the shared ones.
    pub last_properties: &'a [u8],
}

impl Shared {
    /// Return the size of a record from those of its parts.
    pub fn size_of(
        &self,
        born: usize,
        body: usize,
        topic: usize,
        properties: &[u8],
        last_properties: usize,
    ) -> usize {
        FIXED_BYTES
            + born
            + self.store.len()
            + body
            + (1 + topic)
            + (2 + self.property_bytes(properties, last_properties))
    }

    fn property_bytes(&self, properties: &[u8], last: usize) -> usize {
        let separator = usize::from(self.needs_separator(properties, last));
        properties.len() + separator + self.properties.len() + last
    }

    /// Whether something follows properties that do not end with a separator.
    fn needs_separator(&self, properties: &[u8], last: usize) -> bool {
        self.properties.len() + last > 0 && properties.last() != Some(&2)
    }

    /// Write a record into its place, whose length is its size; return the bytes behind it.
    pub fn write<'o>(&self, out: &'o mut [u8], record: &Record<'_>, size: i32) -> &'o mut [u8] {
        let mut out = Writer { out };
        let body = record.body;
        out.i32(size);
        out.i32(MAGIC_V1);
        out.i32((crc32fast::hash(body) & CRC_MASK) as i32);
        out.i32(record.queue_id);
        out.i32(record.flag);
        out.i64(record.queue_offset);
        out.i64(record.log_offset);
        out.i32(record.sys_flag | self.sys_flag);
        out.i64(record.born_ms);
        out.put(record.born);
        out.i64(self.store_ms);
        out.put(&self.store);
        out.i32(record.reconsume_times);
        out.i64(record.prepared_offset);
        out.i32(body.len() as i32);
        out.put(body);
        out.put(&[record.topic.len() as u8]);
        out.put(record.topic);
        let properties = record.properties;
        let last = record.last_properties.len();
        let size = self.property_bytes(properties, last);
        out.put(&(size as i16).to_be_bytes());
        out.put(properties);
        if self.needs_separator(properties, last) {
            out.put(&[2]);
        }
        out.put(&self.properties);
        out.put(record.last_properties);
        out.out
    }
}

/// Writes from the front of a slice on.
struct Writer<'o> {
    out: &'o mut [u8],
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let (place, rest) = std::mem::take(&mut self.out).split_at_mut(bytes.len());
        place.copy_from_slice(bytes);
        self.out = rest;
    }

    fn i32(&mut self, value: i32) {
        self.put(&value.to_be_bytes());
    }

    fn i64(&mut self, value: i64) {
        self.put(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_fills_its_size() {
        for (hosts, added) in [(8, &b""[..]), (20, b"A\x01b\x02")] {
            let shared = Shared {
                born: vec![1; hosts],
                store: vec![2; hosts],
                properties: added.to_vec(),
                ..Shared::default()
            };
            for properties in [&b""[..], b"K\x01v", b"K\x01v\x02"] {
                let record = Record {
                    topic: b"T",
                    queue_id: 1,
                    flag: 2,
                    queue_offset: 3,
                    log_offset: 4,
                    sys_flag: 5,
                    born_ms: 6,
                    born: &shared.born,
                    reconsume_times: 7,
                    prepared_offset: 8,
                    body: b"body",
                    properties,
                    last_properties: b"L\x01l\x02",
                };
                let size = shared.size_of(hosts, 4, 1, properties, 4);
                let mut out = vec![0; size];
                assert!(shared.write(&mut out, &record, size as i32).is_empty());
                let end = [b"\x02", added, b"L\x01l\x02"].concat();
                assert_eq!(out[size - end.len()..], end);
            }
        }
    }
}
