//! What indexes and brokers need of a property string. Twin: `decode_properties` in
//! `downrange/wire/properties.py`; of two values of one name the last counts, an empty one never.

/// A message with one of these is not a plain one; see `UNUSUAL_KEYS` in `wire/send_runs.py`.
const UNUSUAL: [&[u8]; 8] = [
    b"DELAY",
    b"TIMER_DELAY_SEC",
    b"TIMER_DELAY_MS",
    b"TIMER_DELIVER_MS",
    b"CLUSTER",
    b"MSG_REGION",
    b"TRACE_ON",
    b"POP_CK",
];
/// A half message with one of these is not a plain one; see `UNUSUAL_HALF_KEYS` there.
const UNUSUAL_HALF: [&[u8]; 6] = [
    b"__transactionId__",
    b"REAL_TOPIC",
    b"REAL_QID",
    b"TRANSACTION_CHECK_TIMES",
    b"CHECK_IMMUNITY_TIME_IN_SECONDS",
    b"DOWNRANGE_FIRST_OFFSET",
];

/// Positions in a buffer of less than 4 GiB.
#[derive(Clone, Copy, Default)]
pub struct Span {
    pub start: u32,
    pub end: u32,
}

impl Span {
    /// Return the span of two positions; the caller has checked that they fit.
    pub fn new(start: usize, end: usize) -> Self {
        Span {
            start: start as u32,
            end: end as u32,
        }
    }

    pub fn of<'a>(&self, buffer: &'a [u8]) -> &'a [u8] {
        &buffer[self.start as usize..self.end as usize]
    }

    pub fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

/// The values of the properties that are looked at; an absent one is empty.
#[derive(Clone, Copy)]
pub struct Known {
    pub unique_key: Span,
    pub keys: Span,
    pub tags: Span,
    pub group: Span,
    pub is_flush_awaited: bool,
    pub is_unusual: bool,
    pub is_half: bool,
    pub is_unusual_half: bool,
}

/// Look at a property string; None if it has a NUL byte or is not UTF-8.
///
/// `start` is where the string begins in the buffer that the spans are positions of.
pub fn look_at(string: &[u8], start: usize) -> Option<Known> {
    let mut known = Known {
        unique_key: Span::default(),
        keys: Span::default(),
        tags: Span::default(),
        group: Span::default(),
        is_flush_awaited: true,
        is_unusual: false,
        is_half: false,
        is_unusual_half: false,
    };
    if string.contains(&0) {
        return None;
    }
    if !string.is_ascii() {
        std::str::from_utf8(string).ok()?;
    }
    let mut at = start;
    for item in string.split(|&byte| byte == 2) {
        let item_at = at;
        at += item.len() + 1;
        let Some(size) = item.iter().position(|&byte| byte == 1) else {
            continue;
        };
        let (name, value) = (&item[..size], &item[size + 1..]);
        if name.is_empty() || value.is_empty() {
            continue;
        }
        let span = Span::new(item_at + size + 1, item_at + item.len());
        match name {
            b"UNIQ_KEY" => known.unique_key = span,
            b"KEYS" => known.keys = span,
            b"TAGS" => known.tags = span,
            b"PGROUP" => known.group = span,
            b"WAIT" => known.is_flush_awaited = value != b"false",
            b"TRAN_MSG" => {
                known.is_half = value == b"true";
                known.is_unusual |= !known.is_half;
            }
            _ => {
                known.is_unusual |= UNUSUAL.contains(&name);
                known.is_unusual_half |= UNUSUAL_HALF.contains(&name);
            }
        }
    }
    Some(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_and_the_last_counts() {
        let string = b"..UNIQ_KEY\x01u\x02KEYS\x01a b\x02KEYS\x01\x02TAGS\x01x\x01y\x02TAGS\x01z";
        let known = look_at(&string[2..], 2).unwrap();
        assert_eq!(known.unique_key.of(string), b"u");
        assert_eq!(known.keys.of(string), b"a b");
        assert_eq!(known.tags.of(string), b"z");
        assert!(known.is_flush_awaited && !known.is_unusual);
    }

    #[test]
    fn what_needs_a_closer_look_is_noted() {
        assert!(look_at(b"DELAY\x013\x02", 0).unwrap().is_unusual);
        assert!(!look_at(b"DELAY\x01\x02", 0).unwrap().is_unusual);
        assert!(!look_at(b"WAIT\x01false", 0).unwrap().is_flush_awaited);
        assert!(look_at(b"TRAN_MSG\x01false", 0).unwrap().is_unusual);
        let half = look_at(b"TRAN_MSG\x01true\x02REAL_QID\x011", 0).unwrap();
        assert!(half.is_half && half.is_unusual_half && !half.is_unusual);
        assert!(look_at(b"a\x01\x00", 0).is_none());
        assert!(look_at(b"a\x01\xff", 0).is_none());
    }
}
