//! Messages with their properties, alone or as one batch. Twins: `usual_properties` and `batch_of` in
//! `downrange/wire/messages.py`, `usual_batch_bytes` in `downrange/client/flows/producing/batches.py`.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple, PyType};

/// Five i32 before the body, an i16 before the properties.
const ITEM_BYTES: usize = 5 * 4 + 2;
const PROPERTIES_BYTES_MAX: usize = 0x7FFF;
/// The most bytes that are reserved before they are needed: as many as a request usually has.
const RESERVED_BYTES_MAX: usize = 4 << 20;

static MESSAGE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static PURE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(usual_batch_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(usual_properties, module)?)?;
    module.add_function(wrap_pyfunction!(batch_of, module)?)
}

/// Return how many bytes messages take as one batch; None if one of them needs a closer look.
#[pyfunction]
#[pyo3(signature = (messages, body_bytes_max, unique_id_bytes = 32))]
fn usual_batch_bytes(
    messages: &Bound<'_, PyList>,
    body_bytes_max: usize,
    unique_id_bytes: usize,
) -> PyResult<Option<usize>> {
    let class = MESSAGE.import(messages.py(), "downrange.model", "Message")?;
    let mut first: Option<(Bound<'_, PyString>, bool)> = None;
    let mut whole = 0;
    for message in messages.iter() {
        let Some(usual) = Usual::of(&message, class)? else {
            return Ok(None);
        };
        let is_alike = match &first {
            Some((topic, wait_stored)) => {
                let is_topic = topic.is(&usual.topic) || topic.as_any().eq(&usual.topic)?;
                is_topic && *wait_stored == usual.wait_stored
            }
            None => {
                first = Some((usual.topic, usual.wait_stored));
                true
            }
        };
        let body = usual.body.as_bytes().len();
        let properties = usual.text.size(unique_id_bytes);
        if !is_alike
            || usual.flag != 0
            || !usual.text.is_own_usual
            || body == 0
            || body > body_bytes_max
            || properties > PROPERTIES_BYTES_MAX
        {
            return Ok(None);
        }
        whole += ITEM_BYTES + body + properties;
    }
    Ok(Some(whole))
}

/// Return the property string of a message; None if it needs a closer look.
#[pyfunction]
fn usual_properties<'py>(
    message: &Bound<'py, PyAny>,
    body_bytes_max: usize,
    unique_id: &str,
) -> PyResult<Option<Bound<'py, PyString>>> {
    let py = message.py();
    let class = MESSAGE.import(py, "downrange.model", "Message")?;
    let Some(usual) = Usual::of(message, class)? else {
        return Ok(None);
    };
    let body = usual.body.as_bytes().len();
    let size = usual.text.size(unique_id.len());
    if usual.flag != 0
        || !usual.text.is_own_usual
        || body == 0
        || body > body_bytes_max
        || size > PROPERTIES_BYTES_MAX
        || !is_plain(unique_id)
    {
        return Ok(None);
    }
    let mut text = Vec::with_capacity(size);
    usual.text.write(unique_id, &mut text);
    Ok(std::str::from_utf8(&text)
        .ok()
        .map(|text| PyString::new(py, text)))
}

/// Write messages, each with its unique id, as the body of one batch.
///
/// A batch with an unusual message is left to the twin, which also raises the errors.
#[pyfunction]
fn batch_of<'py>(
    messages: &Bound<'py, PyList>,
    ids: &Bound<'py, PyList>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = messages.py();
    let class = MESSAGE.import(py, "downrange.model", "Message")?;
    let mut out = Vec::new();
    for (message, id) in messages.iter().zip(ids.iter()) {
        if !write_item(&message, class, &id, messages.len(), &mut out)? {
            let pure = PURE.import(py, "downrange.wire.messages", "pure_batch_of")?;
            return pure.call1((messages, ids));
        }
    }
    Ok(PyBytes::new(py, &out).into_any())
}

/// Append one message; return false if it is unusual.
fn write_item<'py>(
    message: &Bound<'py, PyAny>,
    class: &Bound<'py, PyType>,
    id: &Bound<'py, PyAny>,
    count: usize,
    out: &mut Vec<u8>,
) -> PyResult<bool> {
    let (Some(usual), Some(id_bytes)) = (Usual::of(message, class)?, plain_size(id)) else {
        return Ok(false);
    };
    let body = usual.body.as_bytes();
    let properties = usual.text.size(id_bytes);
    let size = ITEM_BYTES + body.len() + properties;
    let (Ok(whole), Ok(body_bytes), Ok(property_bytes)) = (
        i32::try_from(size),
        i32::try_from(body.len()),
        i16::try_from(properties),
    ) else {
        return Ok(false);
    };
    if out.is_empty() {
        out.reserve(size.saturating_mul(count).min(RESERVED_BYTES_MAX));
    }
    out.extend_from_slice(&whole.to_be_bytes());
    out.extend_from_slice(&[0; 8]); // magic and CRC, which brokers fill in
    out.extend_from_slice(&usual.flag.to_be_bytes());
    out.extend_from_slice(&body_bytes.to_be_bytes());
    out.extend_from_slice(body);
    out.extend_from_slice(&property_bytes.to_be_bytes());
    usual.text.write(text_of(id), out);
    Ok(true)
}

/// A message of the usual form: not delayed, without a sharding key, its texts in ASCII and
/// without separators.
struct Usual<'py> {
    topic: Bound<'py, PyString>,
    body: Bound<'py, PyBytes>,
    flag: i32,
    wait_stored: bool,
    text: Text<'py>,
}

/// The texts of a message that its properties have.
struct Text<'py> {
    own: Option<Bound<'py, PyDict>>,
    own_bytes: usize,
    /// Whether each name begins with a small letter, so that it is none of the protocol, and each
    /// value with a visible character, so that it is not blank.
    is_own_usual: bool,
    keys: Option<Bound<'py, PyString>>,
    tags: Option<Bound<'py, PyString>>,
    wait: &'static str,
}

impl<'py> Usual<'py> {
    fn of(message: &Bound<'py, PyAny>, class: &Bound<'py, PyType>) -> PyResult<Option<Self>> {
        let py = message.py();
        if !message.get_type().is(class) {
            return Ok(None);
        }
        for name in [
            intern!(py, "sharding_key"),
            intern!(py, "delay_level"),
            intern!(py, "deliver_in"),
            intern!(py, "deliver_at"),
        ] {
            if !message.getattr(name)?.is_none() {
                return Ok(None);
            }
        }
        // The fields of a message can be set to anything.
        let (Ok(topic), Ok(body), Ok(flag), Ok(wait_stored)) = (
            message
                .getattr(intern!(py, "topic"))?
                .cast_into_exact::<PyString>(),
            message
                .getattr(intern!(py, "body"))?
                .cast_into_exact::<PyBytes>(),
            message.getattr(intern!(py, "flag"))?.extract::<i32>(),
            message
                .getattr(intern!(py, "wait_stored"))?
                .extract::<bool>(),
        ) else {
            return Ok(None);
        };
        let Some(text) = Text::of(message, if wait_stored { "true" } else { "false" })? else {
            return Ok(None);
        };
        Ok(Some(Usual {
            topic,
            body,
            flag,
            wait_stored,
            text,
        }))
    }
}

impl<'py> Text<'py> {
    fn of(message: &Bound<'py, PyAny>, wait: &'static str) -> PyResult<Option<Self>> {
        let py = message.py();
        let (Ok(own), Ok(words)) = (
            message
                .getattr(intern!(py, "properties"))?
                .cast_into_exact::<PyDict>(),
            message
                .getattr(intern!(py, "keys"))?
                .cast_into_exact::<PyTuple>(),
        ) else {
            return Ok(None);
        };
        let (mut own_bytes, mut is_own_usual) = (0, true);
        for (name, value) in own.iter() {
            let (Some(name), Some(value)) = (plain_text(&name), plain_text(&value)) else {
                return Ok(None);
            };
            own_bytes += name.len() + value.len() + 2;
            is_own_usual &= name.starts_with(|c: char| c.is_ascii_lowercase())
                && value.starts_with(|c: char| c.is_ascii_graphic());
        }
        let keys = match words.len() {
            0 => None,
            1 => Some(words.get_item(0)?),
            _ => match intern!(py, " ").call_method1(intern!(py, "join"), (&words,)) {
                Ok(text) => Some(text),
                Err(_) => return Ok(None), // a key is not a text
            },
        };
        let tags = Some(message.getattr(intern!(py, "tags"))?).filter(|tags| !tags.is_none());
        for text in [&keys, &tags].into_iter().flatten() {
            if plain_size(text).is_none() {
                return Ok(None);
            }
        }
        let text = |text: Option<Bound<'py, PyAny>>| text.and_then(|text| text.cast_into().ok());
        Ok(Some(Text {
            own: Some(own).filter(|own| !own.is_empty()),
            own_bytes,
            is_own_usual,
            keys: text(keys),
            tags: text(tags),
            wait,
        }))
    }

    fn size(&self, id_bytes: usize) -> usize {
        let named = |name: &str, text: &Option<Bound<'py, PyString>>| {
            let text = text.as_ref().and_then(|text| text.to_str().ok());
            text.map_or(0, |text| name.len() + text.len() + 2)
        };
        let fixed = "UNIQ_KEY".len() + id_bytes + 2 + "WAIT".len() + self.wait.len() + 2;
        self.own_bytes + named("KEYS", &self.keys) + fixed + named("TAGS", &self.tags)
    }

    /// Write `name \x01 value \x02` for each property, in the order of the twin.
    fn write(&self, id: &str, out: &mut Vec<u8>) {
        let mut put = |name: &str, value: &str| {
            out.extend_from_slice(name.as_bytes());
            out.push(1);
            out.extend_from_slice(value.as_bytes());
            out.push(2);
        };
        if let Some(own) = &self.own {
            for (name, value) in own.iter() {
                put(text_of(&name), text_of(&value));
            }
        }
        if let Some(keys) = &self.keys {
            put("KEYS", text_of(keys));
        }
        put("UNIQ_KEY", id);
        put("WAIT", self.wait);
        if let Some(tags) = &self.tags {
            put("TAGS", text_of(tags));
        }
    }
}

/// The text of a string that `plain_size` accepted.
fn text_of<'a>(text: &'a Bound<'_, PyAny>) -> &'a str {
    let text = text.cast::<PyString>().ok();
    text.and_then(|text| text.to_str().ok()).unwrap_or_default()
}

/// The size of a text that `plain_text` accepts.
fn plain_size(text: &Bound<'_, PyAny>) -> Option<usize> {
    plain_text(text).map(str::len)
}

/// A text in ASCII that is not empty and has no separator.
fn plain_text<'a>(text: &'a Bound<'_, PyAny>) -> Option<&'a str> {
    let text = text.cast_exact::<PyString>().ok()?.to_str().ok()?;
    is_plain(text).then_some(text)
}

fn is_plain(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte < 0x80 && byte != 1 && byte != 2)
}
