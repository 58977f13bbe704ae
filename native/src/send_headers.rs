//! The header of a plain send, in both codecs and both versions. Twins: `decode` in
//! `downrange/wire/command.py`, `SendRequest` and `SendRequestV2` in `downrange/wire/headers.py`.
//! `None` means that Python reads the header: it is unusual, damaged, or of another request.

use crate::json::{Cursor, Text, whole_number};

pub const ONEWAY: i32 = 2;
const SEND_V1: i32 = 10;
const SEND_V2: i32 = 310;
/// The names of the fields, V1 and V2, in the order of the letters.
const NAMES: [&[u8]; FIELDS] = [
    b"producerGroup",
    b"topic",
    b"defaultTopic",
    b"defaultTopicQueueNums",
    b"queueId",
    b"sysFlag",
    b"bornTimestamp",
    b"flag",
    b"properties",
    b"reconsumeTimes",
    b"unitMode",
    b"maxReconsumeTimes",
    b"batch",
    b"bname",
];
const FIELDS: usize = 14;
const TOPIC: usize = 1;
const TOPIC_QUEUES: usize = 3;
const QUEUE_ID: usize = 4;
const SYS_FLAG: usize = 5;
const BORN: usize = 6;
const FLAG: usize = 7;
const PROPERTIES: usize = 8;
const TIMES: usize = 9;
const TIMES_MAX: usize = 11;
const BATCH: usize = 12;

/// What a record and a reply need of a header. Texts are in the header or in the buffer of texts.
pub struct SendHeader {
    pub request_id: i32,
    pub is_oneway: bool,
    pub topic: Text,
    pub properties: Text,
    pub queue_id: i32,
    pub sys_flag: i32,
    pub born_ms: i64,
    pub flag: i32,
    pub reconsume_times: i32,
}

/// The parts of a command's header.
struct Command {
    code: i32,
    flags: i32,
    request_id: i32,
    fields: [Option<Text>; FIELDS],
}

/// Read a header; texts with escapes are appended to `texts`.
pub fn read(header: &[u8], is_binary: bool, texts: &mut Vec<u8>) -> Option<SendHeader> {
    let command = if is_binary {
        read_binary(header)?
    } else {
        read_json(header, texts)?
    };
    if command.flags & !ONEWAY != 0 {
        return None;
    }
    let text = |field: usize| command.fields[field].map(|text| text.of(header, texts));
    let number = |field: usize| whole_number(text(field)?);
    let int = |field: usize| i32::try_from(number(field)?).ok();
    for optional in [TOPIC_QUEUES, TIMES_MAX] {
        if text(optional).is_some() {
            int(optional)?;
        }
    }
    if text(BATCH).is_some_and(|is_batch| is_batch != b"false") {
        return None;
    }
    Some(SendHeader {
        request_id: command.request_id,
        is_oneway: command.flags != 0,
        topic: command.fields[TOPIC]?,
        properties: command.fields[PROPERTIES]?,
        queue_id: int(QUEUE_ID)?,
        sys_flag: int(SYS_FLAG)?,
        born_ms: number(BORN)?,
        flag: int(FLAG)?,
        reconsume_times: match text(TIMES) {
            Some(_) => int(TIMES)?,
            None => 0,
        },
    })
}

/// Return the place of a field, or the number of fields if a send has no such field.
fn place_of(name: &[u8], is_v1: bool) -> usize {
    if is_v1 {
        return NAMES
            .iter()
            .position(|&known| known == name)
            .unwrap_or(FIELDS);
    }
    match name {
        [letter @ b'a'..=b'n'] => usize::from(letter - b'a'),
        _ => FIELDS,
    }
}

fn is_v1(code: i32) -> Option<bool> {
    match code {
        SEND_V1 => Some(true),
        SEND_V2 => Some(false),
        _ => None,
    }
}

fn read_json(header: &[u8], texts: &mut Vec<u8>) -> Option<Command> {
    if !header.is_ascii() {
        std::str::from_utf8(header).ok()?;
    }
    let mut command = Command {
        code: 0,
        flags: 0,
        request_id: 0,
        fields: [None; FIELDS],
    };
    let mut cursor = Cursor::new(header);
    let mut seen = 0u8; // of two equal members the last counts: Python sees to that
    cursor.eat(b'{')?;
    loop {
        let name = cursor.name()?;
        cursor.eat(b':')?;
        let bit = match name {
            b"code" => {
                command.code = cursor.number()?;
                is_v1(command.code)?; // most frames that are not sends end here
                1
            }
            b"flag" => {
                command.flags = cursor.number()?;
                2
            }
            b"opaque" => {
                command.request_id = cursor.number()?;
                4
            }
            b"version" => {
                cursor.number()?;
                8
            }
            b"language" | b"serializeTypeCurrentRPC" => {
                cursor.name()?;
                0
            }
            b"extFields" => {
                read_json_fields(&mut cursor, &mut command, texts)?;
                16
            }
            _ => return None,
        };
        if seen & bit != 0 {
            return None;
        }
        seen |= bit;
        if cursor.eat(b',').is_none() {
            break;
        }
    }
    cursor.eat(b'}')?;
    cursor.is_at_end().then_some(command)
}

fn read_json_fields(
    cursor: &mut Cursor<'_>,
    command: &mut Command,
    texts: &mut Vec<u8>,
) -> Option<()> {
    let is_v1 = is_v1(command.code)?; // also None where the code follows the fields
    cursor.eat(b'{')?;
    loop {
        let name = cursor.name()?;
        cursor.eat(b':')?;
        let value = cursor.string(texts)?;
        if let Some(field) = command.fields.get_mut(place_of(name, is_v1)) {
            *field = Some(value);
        }
        if cursor.eat(b',').is_none() {
            return cursor.eat(b'}');
        }
    }
}

fn read_binary(header: &[u8]) -> Option<Command> {
    // Code, language, version, request id, flags, length of the remark.
    let (head, rest) = header.split_first_chunk::<17>()?;
    let code = i32::from(i16::from_be_bytes([head[0], head[1]]));
    let is_v1 = is_v1(code)?;
    if head[13..] != [0; 4] {
        return None;
    }
    let (size, _) = rest.split_first_chunk::<4>()?;
    let mut command = Command {
        code,
        flags: i32::from_be_bytes([head[9], head[10], head[11], head[12]]),
        request_id: i32::from_be_bytes([head[5], head[6], head[7], head[8]]),
        fields: [None; FIELDS],
    };
    let mut at = 21;
    if usize::try_from(i32::from_be_bytes(*size)).ok()? != header.len() - at {
        return None;
    }
    while at < header.len() {
        let (size, _) = header[at..].split_first_chunk::<2>()?;
        let name_end = at + 2 + usize::try_from(i16::from_be_bytes(*size)).ok()?;
        let name = header.get(at + 2..name_end)?;
        let (size, _) = header[name_end..].split_first_chunk::<4>()?;
        let value_at = name_end + 4;
        let value_end = value_at + usize::try_from(i32::from_be_bytes(*size)).ok()?;
        let value = header.get(value_at..value_end)?;
        std::str::from_utf8(name).ok()?;
        std::str::from_utf8(value).ok()?;
        at = value_end;
        if value.is_empty() {
            continue; // it counts as absent
        }
        if let Some(field) = command.fields.get_mut(place_of(name, is_v1)) {
            *field = Some(Text::AsIs(value_at, value_end));
        }
    }
    Some(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"code":310,"extFields":{"a":"g","b":"T","e":"3","f":"0","g":"99","h":"7","i":"K\u0001v"},"flag":2,"language":"JAVA","opaque":5,"version":1}"#;

    #[test]
    fn a_json_header_is_read() {
        let mut texts = Vec::new();
        let header = read(JSON.as_bytes(), false, &mut texts).unwrap();
        assert_eq!((header.request_id, header.is_oneway), (5, true));
        assert_eq!((header.queue_id, header.born_ms, header.flag), (3, 99, 7));
        assert_eq!(header.properties.of(JSON.as_bytes(), &texts), b"K\x01v");
    }

    #[test]
    fn other_requests_and_other_forms_are_left_alone() {
        for (old, new) in [
            ("310", "11"),
            ("\"b\"", "\"B\""),
            ("\"e\":\"3\"", "\"e\":3"),
            ("\"g\":\"99\"", "\"g\":\"x\""),
            ("\"flag\":2", "\"flag\":1"),
            ("\"code\":310", "\"code\":310,\"code\":310"),
            ("\"version\":1}", "\"version\":1} "),
            ("\"version\"", "\"remark\""),
            ("\"a\":\"g\"", "\"m\":\"true\""),
        ] {
            let json = JSON.replacen(old, new, 1);
            assert_ne!(json, JSON);
            assert!(
                read(json.as_bytes(), false, &mut Vec::new()).is_none(),
                "{json}"
            );
        }
    }

    #[test]
    fn a_cut_header_is_left_alone() {
        for end in 0..JSON.len() {
            assert!(read(&JSON.as_bytes()[..end], false, &mut Vec::new()).is_none());
            assert!(read(&JSON.as_bytes()[..end], true, &mut Vec::new()).is_none());
        }
    }
}
