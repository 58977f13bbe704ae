//! Replies to sends, many of one read. Twin: `stored_answers` in `downrange/wire/send_answers.py`.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyString, PyType};

/// How Java and we begin the header of a success.
const BEGINNING: &[u8] = b"{\"code\":0,\"extFields\":{\"";

static ANSWER: PyOnceLock<Py<PyType>> = PyOnceLock::new();

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(stored_answers, module)?)
}

/// Read the replies from a position on, up to the first one that is not a plain success.
#[pyfunction]
fn stored_answers<'py>(
    data: &Bound<'py, PyBytes>,
    at: usize,
    length_max: i64,
) -> PyResult<(Vec<Bound<'py, PyAny>>, usize)> {
    let py = data.py();
    let class = ANSWER.import(py, "downrange.wire.send_answers", "StoredAnswer")?;
    let bytes = data.as_bytes();
    let mut answers = Vec::new();
    let mut at = at;
    // All answers of a broker have the same region, so its text is made once.
    let mut region: Option<(&str, Bound<'py, PyString>)> = None;
    while let Some((answer, end)) = answer_at(bytes, at, length_max) {
        let own_region = answer.region.map(|name| match &region {
            Some((known, text)) if *known == name => text.clone(),
            _ => region.insert((name, PyString::new(py, name))).1.clone(),
        });
        let trace_on = answer.trace_on.map(|text| match text {
            "true" => intern!(py, "true"),
            _ => intern!(py, "false"),
        });
        answers.push(class.call1((
            answer.request_id,
            answer.queue_id,
            answer.queue_offset,
            answer.msg_id,
            answer.transaction_id,
            own_region,
            trace_on,
            answer.recall_handle,
        ))?);
        at = end;
    }
    Ok((answers, at))
}

#[derive(Debug, Default, PartialEq)]
struct Answer<'a> {
    request_id: i64,
    queue_id: i64,
    queue_offset: i64,
    msg_id: &'a str,
    transaction_id: Option<&'a str>,
    region: Option<&'a str>,
    trace_on: Option<&'a str>,
    recall_handle: Option<&'a str>,
}

/// Read one reply; None if it is cut off, or is not a plain success.
fn answer_at(data: &[u8], at: usize, length_max: i64) -> Option<(Answer<'_>, usize)> {
    let frame = data.get(at..)?;
    let length = i32::from_be_bytes(*frame.first_chunk()?);
    let word = i32::from_be_bytes(*frame.get(4..)?.first_chunk()?);
    // Without a body and with a JSON header, the second word is the first one less its own size.
    if length < 4 || i64::from(length) > length_max || word != length - 4 {
        return None;
    }
    let size = usize::try_from(length).ok()?;
    let header = frame.get(8..4 + size)?;
    if !header.starts_with(BEGINNING) {
        return None;
    }
    Some((read_header(header)?, at + 4 + size))
}

fn read_header(header: &[u8]) -> Option<Answer<'_>> {
    let mut cursor = Cursor(header);
    let mut answer = Answer::default();
    let (mut has_fields, mut flag, mut request_id) = (false, None, None);
    cursor.eat(b'{')?;
    loop {
        let name = cursor.string()?;
        cursor.eat(b':')?;
        match name {
            "code" => (cursor.integer()? == 0).then_some(())?,
            "extFields" if !has_fields => {
                read_fields(&mut cursor, &mut answer)?;
                has_fields = true;
            }
            "flag" => flag = Some(cursor.integer()?),
            "opaque" => request_id = Some(cursor.integer()?),
            "version" => drop(i32::try_from(cursor.integer()?).ok()?),
            "language" | "serializeTypeCurrentRPC" => drop(cursor.string()?),
            _ => return None,
        }
        if cursor.eat(b',').is_none() {
            break;
        }
    }
    cursor.eat(b'}')?;
    answer.request_id = request_id.filter(|id| (0..=i32::MAX.into()).contains(id))?;
    (has_fields && flag == Some(1) && cursor.0.is_empty()).then_some(answer)
}

fn read_fields<'a>(cursor: &mut Cursor<'a>, answer: &mut Answer<'a>) -> Option<()> {
    let (mut msg_id, mut queue_id, mut queue_offset) = (None, None, None);
    cursor.eat(b'{')?;
    loop {
        let name = cursor.string()?;
        cursor.eat(b':')?;
        let text = cursor.string()?;
        match name {
            "msgId" => msg_id = Some(text),
            "queueId" => queue_id = Some(text),
            "queueOffset" => queue_offset = Some(text),
            "transactionId" => answer.transaction_id = Some(text),
            "MSG_REGION" => answer.region = Some(text),
            "TRACE_ON" if text == "true" || text == "false" => answer.trace_on = Some(text),
            "recallHandle" => answer.recall_handle = Some(text),
            _ => return None,
        }
        if cursor.eat(b',').is_none() {
            break;
        }
    }
    cursor.eat(b'}')?;
    answer.msg_id = msg_id?;
    answer.queue_id = number(queue_id?).filter(|number| *number <= i32::MAX.into())?;
    answer.queue_offset = number(queue_offset?)?;
    Some(())
}

/// Read a number in its shortest form, without a sign.
fn number(text: &str) -> Option<i64> {
    let is_shortest = text.len() == 1 || !text.starts_with('0');
    let is_number = text.len() <= 18 && text.bytes().all(|digit| digit.is_ascii_digit());
    (is_shortest && is_number).then(|| text.parse().ok())?
}

/// The rest of a JSON text without blanks and escapes.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn eat(&mut self, expected: u8) -> Option<()> {
        self.0 = self.0.strip_prefix(&[expected])?;
        Some(())
    }

    fn string(&mut self) -> Option<&'a str> {
        self.eat(b'"')?;
        let size = self
            .0
            .iter()
            .position(|&byte| byte == b'"' || byte == b'\\' || byte < 0x20)?;
        let (text, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        self.eat(b'"')?;
        std::str::from_utf8(text).ok()
    }

    fn integer(&mut self) -> Option<i64> {
        let rest = self.0;
        let size = rest
            .iter()
            .position(|byte| !byte.is_ascii_digit() && *byte != b'-')?;
        let (text, rest) = rest.split_at_checked(size)?;
        if matches!(rest.first(), Some(b'.' | b'e' | b'E')) {
            return None;
        }
        self.0 = rest;
        let text = std::str::from_utf8(text).ok()?;
        let digits = text.strip_prefix('-').unwrap_or(text);
        (digits == "0" || !digits.starts_with('0')).then(|| text.parse().ok())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(header: &str) -> Vec<u8> {
        let size = i32::try_from(header.len()).unwrap();
        [
            &(size + 4).to_be_bytes()[..],
            &size.to_be_bytes(),
            header.as_bytes(),
        ]
        .concat()
    }

    const PLAIN: &str = concat!(
        r#"{"code":0,"extFields":{"queueId":"3","msgId":"7F","queueOffset":"12"},"flag":1,"#,
        r#""language":"JAVA","opaque":7,"serializeTypeCurrentRPC":"JSON","version":515}"#
    );

    #[test]
    fn a_plain_reply_is_read() {
        let data = frame(PLAIN);
        let (answer, end) = answer_at(&data, 0, 1000).unwrap();
        assert_eq!(end, data.len());
        assert_eq!(answer.request_id, 7);
        assert_eq!((answer.queue_id, answer.queue_offset), (3, 12));
        assert_eq!(answer.msg_id, "7F");
    }

    #[test]
    fn anything_else_is_left() {
        for (from, to) in [
            (r#""code":0"#, r#""code":1"#),
            (r#""flag":1"#, r#""flag":3"#),
            (r#""flag":1"#, r#""flag":1,"remark":"x""#),
            (r#""opaque":7"#, r#""opaque":-7"#),
            (r#""opaque":7"#, r#""opaque":7.5"#),
            (r#""version":515"#, r#""version":5150000000"#),
            (r#""queueOffset":"12""#, r#""queueOffset":"-12""#),
            (r#""msgId":"7F","#, ""),
            (r#""msgId":"7F""#, r#""msgId":"\u0037F""#),
            ("515}", "515"),
        ] {
            assert_eq!(
                answer_at(&frame(&PLAIN.replace(from, to)), 0, 1000),
                None,
                "{to}"
            );
        }
    }

    #[test]
    fn a_reply_that_is_cut_off_is_left() {
        let data = frame(PLAIN);
        for size in 0..data.len() {
            assert_eq!(answer_at(&data[..size], 0, 1000), None);
        }
    }
}
