//! Property strings of Spark's rows. Twin: `joined_rows` in
//! `downrange/spark/write/row_properties.py`.

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::waiting::{self, LONG_COUNT, LONG_WRITE_BYTES};

/// Where each row ends, and the bytes of all rows.
type Rows<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);
/// A column as Python gives it: bounds of the values, bytes, and which values are there.
type Given = (PyBuffer<i32>, PyBuffer<u8>, Option<PyBuffer<u8>>);

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(joined_rows, module)?)
}

/// Join the columns of each row, every value between its prefix and its suffix.
#[pyfunction]
fn joined_rows<'py>(
    py: Python<'py>,
    count: usize,
    columns: Vec<(Vec<u8>, Given, Vec<u8>)>,
    ending: Vec<u8>,
) -> PyResult<Rows<'py>> {
    if columns.is_empty() {
        return Err(PyValueError::new_err("rows need a column")); // it bounds their number
    }
    let mut known = Vec::with_capacity(columns.len());
    for (prefix, given, suffix) in &columns {
        known.push((prefix, Column::of(py, given, count)?, suffix));
    }
    let bytes: usize = known.iter().map(|(_, column, _)| column.data.len()).sum();
    let is_long = count > LONG_COUNT || bytes > LONG_WRITE_BYTES;
    let whole = waiting::run(py, is_long, || {
        let mut whole = Written::new(count)?;
        for row in 0..count {
            for (prefix, column, suffix) in &known {
                if let Some(value) = column.value(row)? {
                    whole.data.extend_from_slice(prefix);
                    whole.data.extend_from_slice(value);
                    whole.data.extend_from_slice(suffix);
                }
            }
            whole.data.extend_from_slice(&ending);
            whole.end_row()?;
        }
        Ok::<_, PyErr>(whole)
    })?;
    Ok(whole.finish(py))
}

/// A column of texts in Arrow's form, copied: Python could change the buffers meanwhile.
struct Column {
    bounds: Vec<i32>,
    data: Vec<u8>,
    is_valid: Option<Vec<u8>>,
}

impl Column {
    fn of(py: Python<'_>, given: &Given, count: usize) -> PyResult<Self> {
        let is_valid = given.2.as_ref().map(|valid| valid.to_vec(py));
        let column = Column {
            bounds: given.0.to_vec(py)?,
            data: given.1.to_vec(py)?,
            is_valid: is_valid.transpose()?,
        };
        let has_all = column
            .is_valid
            .as_ref()
            .is_none_or(|valid| valid.len() >= count);
        if column.bounds.len() > count && has_all {
            Ok(column)
        } else {
            Err(PyValueError::new_err("a column is too short"))
        }
    }

    /// Return the bytes of a value; None if it is null.
    fn value(&self, row: usize) -> PyResult<Option<&[u8]>> {
        let is_null = |valid: &Vec<u8>| valid.get(row).is_none_or(|&bit| bit == 0);
        if self.is_valid.as_ref().is_some_and(is_null) {
            return Ok(None);
        }
        let bound = |at: usize| usize::try_from(*self.bounds.get(at)?).ok();
        let value = match (bound(row), bound(row + 1)) {
            (Some(start), Some(end)) => self.data.get(start..end),
            _ => None,
        };
        let outside = || PyValueError::new_err("a bound is outside of the data");
        value.ok_or_else(outside).map(Some)
    }
}

/// Rows that are written one after the other.
struct Written {
    bounds: Vec<u8>,
    data: Vec<u8>,
}

impl Written {
    fn new(count: usize) -> PyResult<Self> {
        let size = count.checked_add(1).and_then(|count| count.checked_mul(4));
        let too_many = || PyValueError::new_err("there are too many rows");
        let mut bounds = Vec::with_capacity(size.ok_or_else(too_many)?);
        bounds.extend_from_slice(&0_i32.to_ne_bytes());
        Ok(Written {
            bounds,
            data: Vec::new(),
        })
    }

    fn end_row(&mut self) -> PyResult<()> {
        let end = i32::try_from(self.data.len())?;
        self.bounds.extend_from_slice(&end.to_ne_bytes());
        Ok(())
    }

    fn finish(self, py: Python<'_>) -> Rows<'_> {
        (PyBytes::new(py, &self.bounds), PyBytes::new(py, &self.data))
    }
}
