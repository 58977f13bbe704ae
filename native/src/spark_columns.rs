//! Columns of Spark from the records of pull replies. Twins: `record_starts` in
//! `downrange/spark/read/record_table.py`; for `property_values`, `PropertyTable` in
//! `downrange/spark/read/property_columns.py`.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

use crate::waiting::{self, LONG_COUNT, LONG_READ_BYTES};

/// The shortest record: the fixed part, and the lengths of topic and properties.
const RECORD_BYTES_MIN: usize = 88 + 1 + 2;
const NAME_END: u8 = 1;
const VALUE_END: u8 = 2;

static PURE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// A column of texts: bounds, bytes, and a byte for each row that says whether it has a value.
type Texts<'py> = (
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
);
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(record_starts, module)?)?;
    module.add_function(wrap_pyfunction!(property_values, module)?)
}

/// Return where the records of replies begin, as i64; the twin raises the errors.
#[pyfunction]
fn record_starts<'py>(data: &Bound<'py, PyBytes>, ends: Vec<usize>) -> PyResult<Bound<'py, PyAny>> {
    let py = data.py();
    match starts_of(data.as_bytes(), &ends) {
        Some(starts) => Ok(PyBytes::new(py, &starts).into_any()),
        None => {
            let pure = PURE.import(
                py,
                "downrange.spark.read.record_table",
                "pure_record_starts",
            )?;
            pure.call1((data, ends))
        }
    }
}

fn starts_of(data: &[u8], ends: &[usize]) -> Option<Vec<u8>> {
    let mut starts = Vec::new();
    let mut at = 0;
    for &end in ends {
        while at + RECORD_BYTES_MIN <= end {
            let size = i32::from_be_bytes(*data.get(at..)?.first_chunk()?);
            let size = usize::try_from(size).ok()?;
            if size < RECORD_BYTES_MIN {
                return None;
            }
            starts.extend_from_slice(&i64::try_from(at).ok()?.to_ne_bytes());
            at += size;
        }
        if at != end {
            return None;
        }
    }
    Some(starts)
}

/// Return the values of some properties of each row; None if a row is not plain ASCII.
#[pyfunction]
fn property_values<'py>(
    data: &Bound<'py, PyBytes>,
    starts: PyBuffer<i64>,
    ends: PyBuffer<i64>,
    names: Vec<Vec<u8>>,
) -> PyResult<Option<Vec<Texts<'py>>>> {
    let py = data.py();
    let (bytes, starts, ends) = (data.as_bytes(), starts.to_vec(py)?, ends.to_vec(py)?);
    let is_long = starts.len() > LONG_COUNT / 8 || bytes.len() > LONG_READ_BYTES;
    let columns = waiting::run(py, is_long, || values_of(bytes, &starts, &ends, &names))?;
    Ok(columns.map(|columns| {
        columns
            .into_iter()
            .map(|column| column.finish(py))
            .collect()
    }))
}

fn values_of(
    data: &[u8],
    starts: &[i64],
    ends: &[i64],
    names: &[Vec<u8>],
) -> PyResult<Option<Vec<Column>>> {
    let Some(rows) = rows_of(data, starts, ends) else {
        return Ok(None);
    };
    let mut columns: Vec<Column> = names.iter().map(|_| Column::default()).collect();
    let mut found: Vec<Option<&[u8]>> = vec![None; names.len()];
    for row in rows {
        found.fill(None);
        for (name, value) in items_of(row) {
            // If a row has the name twice, the last value counts.
            let wanted = names
                .iter()
                .zip(&mut found)
                .find(|(wanted, _)| *wanted == name);
            if let Some((_, place)) = wanted {
                *place = Some(value);
            }
        }
        for (column, value) in columns.iter_mut().zip(&found) {
            column.add(*value)?;
        }
    }
    Ok(Some(columns))
}

/// Return the property string of each row; None if one is outside of the data or not ASCII.
fn rows_of<'a>(data: &'a [u8], starts: &[i64], ends: &[i64]) -> Option<Vec<&'a [u8]>> {
    let bounds = starts.iter().zip(ends);
    bounds
        .map(|(&start, &end)| {
            let row = data.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)?;
            row.is_ascii().then_some(row)
        })
        .collect()
}

/// Return the names and values of a property string; an item without a name or value is left out.
fn items_of(row: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    row.split(|&byte| byte == VALUE_END).filter_map(|item| {
        let at = item.iter().position(|&byte| byte == NAME_END)?;
        let (name, rest) = item.split_at_checked(at)?;
        let value = rest.get(1..)?;
        (!name.is_empty() && !value.is_empty()).then_some((name, value))
    })
}

/// Texts one after the other.
struct Column {
    bounds: Vec<u8>,
    data: Vec<u8>,
    is_valid: Vec<u8>,
}

impl Default for Column {
    fn default() -> Self {
        Column {
            bounds: 0_i32.to_ne_bytes().to_vec(),
            data: Vec::new(),
            is_valid: Vec::new(),
        }
    }
}

impl Column {
    fn add(&mut self, value: Option<&[u8]>) -> PyResult<()> {
        self.data.extend_from_slice(value.unwrap_or_default());
        let end = i32::try_from(self.data.len())?;
        self.bounds.extend_from_slice(&end.to_ne_bytes());
        self.is_valid.push(value.is_some().into());
        Ok(())
    }

    fn finish(self, py: Python<'_>) -> Texts<'_> {
        (
            PyBytes::new(py, &self.bounds),
            PyBytes::new(py, &self.data),
            PyBytes::new(py, &self.is_valid),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_need_a_name_and_a_value() {
        let row = b"A\x01b\x02\x02C\x01\x02\x01d\x02E\x01f\x01g";
        let items: Vec<_> = items_of(row).collect();
        assert_eq!(items, [(&b"A"[..], &b"b"[..]), (b"E", b"f\x01g")]);
    }

    #[test]
    fn records_must_end_with_their_reply() {
        let mut data = vec![0; 100];
        data[3] = 100;
        assert_eq!(starts_of(&data, &[100]).map(|starts| starts.len()), Some(8));
        assert_eq!(starts_of(&data, &[99]), None);
        assert_eq!(starts_of(&data, &[100, 200]), None);
    }
}
