//! Units of queue indexes. Twins: `neighbours` and `tagged` in `downrange/store/unit_runs.py`.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFrozenSet};

use crate::waiting::{self, LONG_UNIT_BYTES};

/// i64 log offset, i32 record size, i64 tag hash.
pub const UNIT_BYTES: usize = 20;
const GAP_BYTES: i128 = 8 * 1024;
const GAPS_BYTES_MAX: i128 = 4 * 1024 * 1024;
/// Up to so many hashes are compared one after the other. More are looked up in the set.
const HASHES_COMPARED_MAX: usize = 16;

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(neighbours, module)?)?;
    module.add_function(wrap_pyfunction!(tagged, module)?)
}

/// Return how many records may be read, and the ranges of the log that hold them.
#[pyfunction]
fn neighbours(
    py: Python<'_>,
    units: &[u8],
    log_first: i64,
    log_end: i64,
    bytes_max: i64,
) -> PyResult<(usize, Vec<Range>)> {
    let units = whole_units(units)?;
    let is_long = units.len() > LONG_UNIT_BYTES / UNIT_BYTES;
    Ok(waiting::run(py, is_long, || {
        ranges(units, log_first, log_end, bytes_max)
    }))
}

/// The first position of a range of the log, and the one behind its last.
type Range = (i64, i64);

fn ranges(
    units: &[[u8; UNIT_BYTES]],
    log_first: i64,
    log_end: i64,
    bytes_max: i64,
) -> (usize, Vec<Range>) {
    let (Some(first), Some(last)) = (units.first(), units.last()) else {
        return (0, Vec::new());
    };
    let (begin, end) = (
        number(first),
        number(last).saturating_add(size_of(last).into()),
    );
    let span = i128::from(end) - i128::from(begin);
    let total: i128 = units.iter().map(|unit| i128::from(size_of(unit))).sum();
    if log_first <= begin && end <= log_end && total == span && span <= i128::from(bytes_max) {
        return (units.len(), vec![(begin, end)]); // nothing is between them
    }
    let mut runs = Vec::new();
    let (mut begin, mut end, mut count) = (0i64, 0i64, 0usize);
    let (mut total, mut gaps) = (0i128, 0i128);
    for unit in units {
        let (log_offset, size) = (number(unit), size_of(unit));
        total += i128::from(size);
        let is_stored = log_first <= log_offset && log_offset < log_end;
        if !is_stored || (total > i128::from(bytes_max) && count > 0) {
            break;
        }
        if log_offset != end || count == 0 {
            if count > 0 {
                gaps += (i128::from(log_offset) - i128::from(end)).min(GAP_BYTES);
                if gaps > GAPS_BYTES_MAX {
                    break;
                }
                runs.push((begin, end));
            }
            begin = log_offset;
        }
        end = log_offset.saturating_add(i64::from(size));
        count += 1;
    }
    if count > 0 {
        runs.push((begin, end));
    }
    (count, runs)
}

/// Return positions and units of those with one of some tags, and the size of their records.
#[pyfunction]
fn tagged<'py>(
    py: Python<'py>,
    units: &[u8],
    hashes: &Bound<'py, PyFrozenSet>,
) -> PyResult<(Vec<usize>, Bound<'py, PyBytes>, i64)> {
    let units = whole_units(units)?;
    let mut found = Found::default();
    if hashes.len() > HASHES_COMPARED_MAX {
        // A set of our own would be made in each call, which takes longer than the search.
        for (position, unit) in units.iter().enumerate() {
            if hashes.contains(hash_of(unit))? {
                found.add(position, unit);
            }
        }
    } else {
        // A hash of more than 64 bits is in no unit.
        let hashes: Vec<i64> = hashes
            .iter()
            .filter_map(|hash| hash.extract().ok())
            .collect();
        waiting::run(py, units.len() > LONG_UNIT_BYTES / UNIT_BYTES, || {
            for (position, unit) in units.iter().enumerate() {
                if hashes.contains(&hash_of(unit)) {
                    found.add(position, unit);
                }
            }
        });
    }
    Ok((found.positions, PyBytes::new(py, &found.units), found.size))
}

/// Units that were searched for.
#[derive(Default)]
struct Found {
    positions: Vec<usize>,
    units: Vec<u8>,
    size: i64,
}

impl Found {
    fn add(&mut self, position: usize, unit: &[u8; UNIT_BYTES]) {
        self.positions.push(position);
        self.units.extend_from_slice(unit);
        self.size += i64::from(size_of(unit));
    }
}

fn whole_units(units: &[u8]) -> PyResult<&[[u8; UNIT_BYTES]]> {
    let (units, rest) = units.as_chunks();
    if rest.is_empty() {
        Ok(units)
    } else {
        Err(PyValueError::new_err("the last unit is cut off"))
    }
}

fn number(bytes: &[u8]) -> i64 {
    i64::from_be_bytes(*bytes.first_chunk().unwrap_or(&[0; 8]))
}

fn hash_of(unit: &[u8; UNIT_BYTES]) -> i64 {
    number(&unit[12..])
}

fn size_of(unit: &[u8; UNIT_BYTES]) -> i32 {
    i32::from_be_bytes(*unit[8..].first_chunk().unwrap_or(&[0; 4]))
}
