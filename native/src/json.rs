//! Reads a flat JSON text as the clients of RocketMQ write it: no blanks, no nesting beyond what
//! the caller asks for. Everything else is `None`, and Python reads the text instead. So there is
//! no error here, and no form that only this file knows.

/// Where a text stands: in the JSON itself, or unescaped in a buffer of the caller.
#[derive(Clone, Copy)]
pub enum Text {
    AsIs(usize, usize),
    Unescaped(usize, usize),
}

impl Text {
    /// Return the bytes of the text.
    pub fn of<'a>(&self, json: &'a [u8], unescaped: &'a [u8]) -> &'a [u8] {
        match *self {
            Text::AsIs(start, end) => &json[start..end],
            Text::Unescaped(start, end) => &unescaped[start..end],
        }
    }
}

/// A position in a JSON text, which is valid UTF-8.
pub struct Cursor<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Cursor { data, at: 0 }
    }

    pub fn is_at_end(&self) -> bool {
        self.at == self.data.len()
    }

    /// Pass one byte if it is the next.
    pub fn eat(&mut self, byte: u8) -> Option<()> {
        (self.data.get(self.at) == Some(&byte)).then(|| self.at += 1)
    }

    /// Read a whole number of 32 bits, without leading zeros.
    pub fn number(&mut self) -> Option<i32> {
        let start = self.at;
        while matches!(self.data.get(self.at), Some(b'-' | b'0'..=b'9')) {
            self.at += 1;
        }
        i32::try_from(whole_number(&self.data[start..self.at])?).ok()
    }

    /// Read a string without escapes, as names of members are.
    pub fn name(&mut self) -> Option<&'a [u8]> {
        match self.string(&mut Vec::new())? {
            Text::AsIs(start, end) => Some(&self.data[start..end]),
            Text::Unescaped(..) => None,
        }
    }

    /// Read a string; one with escapes is appended to `unescaped`.
    pub fn string(&mut self, unescaped: &mut Vec<u8>) -> Option<Text> {
        self.eat(b'"')?;
        let start = self.at;
        self.pass_usual();
        if self.eat(b'"').is_some() {
            return Some(Text::AsIs(start, self.at - 1));
        }
        let begin = unescaped.len();
        let mut usual_from = start;
        loop {
            unescaped.extend_from_slice(&self.data[usual_from..self.at]);
            if self.eat(b'"').is_some() {
                return Some(Text::Unescaped(begin, unescaped.len()));
            }
            self.eat(b'\\')?; // else a control character, or the end
            self.escape(unescaped)?;
            usual_from = self.at;
            self.pass_usual();
        }
    }

    /// Pass everything up to a quote, a backslash or a control character.
    fn pass_usual(&mut self) {
        let rest = &self.data[self.at..];
        self.at += rest
            .iter()
            .position(|&byte| byte == b'"' || byte == b'\\' || byte < 0x20)
            .unwrap_or(rest.len());
    }

    /// Read what follows a backslash.
    fn escape(&mut self, unescaped: &mut Vec<u8>) -> Option<()> {
        let byte = *self.data.get(self.at)?;
        self.at += 1;
        unescaped.push(match byte {
            b'"' | b'\\' | b'/' => byte,
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'b' => 8,
            b'f' => 12,
            b'u' => return self.unicode_escape(unescaped),
            _ => return None,
        });
        Some(())
    }

    /// Read four digits of one UTF-16 unit; a half of a surrogate pair is left to Python.
    fn unicode_escape(&mut self, unescaped: &mut Vec<u8>) -> Option<()> {
        let digits = self.data.get(self.at..self.at + 4)?;
        let mut unit = 0;
        for &digit in digits {
            unit = unit * 16 + char::from(digit).to_digit(16)?;
        }
        self.at += 4;
        let character = char::from_u32(unit)?;
        unescaped.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        Some(())
    }
}

/// Read a whole number as every reader reads it: digits without leading zeros, perhaps a minus.
pub fn whole_number(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    if digits.is_empty() || digits.len() > 18 || (digits[0] == b'0' && text.len() > 1) {
        return None;
    }
    let mut value = 0i64;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value * 10 + i64::from(digit - b'0');
    }
    Some(if is_negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Option<String> {
        let mut unescaped = Vec::new();
        let mut cursor = Cursor::new(json.as_bytes());
        let text = cursor.string(&mut unescaped)?;
        let bytes = text.of(json.as_bytes(), &unescaped).to_vec();
        Some(String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn strings_are_unescaped() {
        assert_eq!(read("\"plain\"").as_deref(), Some("plain"));
        assert_eq!(
            read(r#""a\u0001b\u00e9\"\\\/\n""#).as_deref(),
            Some("a\u{1}bé\"\\/\n")
        );
        assert_eq!(read("\"é\"").as_deref(), Some("é"));
    }

    #[test]
    fn what_is_unusual_is_left_alone() {
        for json in [
            "",
            "\"",
            "\"a",
            "\"\u{1}\"",
            r#""\x""#,
            r#""\u12""#,
            r#""\ud83d""#,
            r#""\u+123""#,
        ] {
            assert_eq!(read(json), None, "{json}");
        }
    }

    #[test]
    fn numbers_have_one_form() {
        assert_eq!(whole_number(b"0"), Some(0));
        assert_eq!(whole_number(b"-17"), Some(-17));
        assert_eq!(
            whole_number(b"999999999999999999"),
            Some(999_999_999_999_999_999)
        );
        for text in ["", "-", "01", "-0", "1.0", "+1", "1234567890123456789"] {
            assert_eq!(whole_number(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Cursor::new(b"2147483648").number(), None);
    }
}
