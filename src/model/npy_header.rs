//! The header of a NumPy file: a magic number, a version, a length, and a dictionary as Python
//! writes it, of which this takes what `numpy.save` writes.

use grpcxx_rpc::{DType, Shape};

use super::format::{Flaw, Record, flaw};

/// The start of a file that is long enough for every header that is read.
pub(super) const HEADER_BYTES_ENOUGH: usize = 64 << 10;

/// Whether a file that begins like this is one of NumPy.
pub(super) fn is_npy(start: &[u8]) -> bool {
    start.starts_with(MAGIC)
}

/// The one tensor of a file of `file_bytes` bytes that begins like this, as a record from its first
/// byte on, and where that is.
pub(super) fn parse(start: &[u8], file_bytes: u64) -> Result<(Record, u64), Flaw> {
    let (header, data_offset) = text(start)?;
    let mut rest = Rest(header);
    let (mut dtype, mut shape, mut is_fortran) = (None, None, None);
    rest.take('{')?;
    while !rest.has('}') {
        let key = rest.string()?;
        rest.take(':')?;
        match key {
            "descr" => dtype = Some(rest.string().map_err(|_| records())?),
            "fortran_order" => is_fortran = Some(rest.boolean()?),
            "shape" => shape = Some(rest.dims()?),
            _ => {
                return Err(flaw(format!(
                    "the header has {key:?}, which no NumPy file has"
                )));
            }
        }
        if !rest.has(',') {
            rest.take('}')?;
            break;
        }
    }
    let (Some(descr), Some(dims), Some(is_fortran)) = (dtype, shape, is_fortran) else {
        return Err(flaw(
            "the header lacks descr, shape or fortran_order; the file is damaged".to_owned(),
        ));
    };
    if is_fortran && dims.iter().filter(|&&dim| dim != 1).count() > 1 {
        return Err(flaw(
            "the array is in Fortran order; save numpy.ascontiguousarray(array) instead".to_owned(),
        ));
    }
    let dtype = super::npy::dtype(descr).ok_or_else(|| {
        flaw(format!(
            "arrays of {descr:?} cannot be sent; save array.astype() of bool, integers, floats or complex numbers of this machine's byte order"
        ))
    })?;
    let shape = Shape::new(&dims).map_err(|error| flaw(error.to_string()))?;
    let record = record(dtype, shape)?;
    let found = file_bytes.saturating_sub(data_offset);
    if found != record.end {
        return Err(flaw(format!(
            "{found} bytes follow the header, but its array has {}; the file was cut off or has more than one array, save it again",
            record.end
        )));
    }
    Ok((record, data_offset))
}

/// The dictionary, and where the data begins.
fn text(start: &[u8]) -> Result<(&str, u64), Flaw> {
    let cut = || flaw("the header is cut off; copy the file again".to_owned());
    let (major, after) = match start.get(MAGIC.len()..MAGIC.len() + 2) {
        Some([major, _]) => (*major, &start[MAGIC.len() + 2..]),
        _ => return Err(cut()),
    };
    let (len, prefix_bytes) = match major {
        1 => {
            let len = after.first_chunk().ok_or_else(cut)?;
            (usize::from(u16::from_le_bytes(*len)), 2)
        }
        2 | 3 => {
            let len = after.first_chunk().ok_or_else(cut)?;
            (u32::from_le_bytes(*len) as usize, 4)
        }
        _ => {
            return Err(flaw(format!(
                "the file is of version {major} of NumPy's format; save it with versions 1 to 3"
            )));
        }
    };
    let begin = MAGIC.len() + 2 + prefix_bytes;
    if len > HEADER_BYTES_ENOUGH - begin {
        return Err(flaw(format!(
            "the header announces {len} bytes, allowed are {}; it is no array of numbers",
            HEADER_BYTES_ENOUGH - begin
        )));
    }
    let bytes = start.get(begin..begin + len).ok_or_else(cut)?;
    let text = std::str::from_utf8(bytes)
        .map_err(|error| flaw(format!("the header is no text ({error})")))?;
    Ok((text, (begin + len) as u64))
}

fn record(dtype: DType, shape: Shape) -> Result<Record, Flaw> {
    let bytes = dtype.data_bytes(shape.num_elements());
    let end = bytes.and_then(|bytes| u64::try_from(bytes).ok());
    let end = end.ok_or_else(|| flaw(format!("shape {shape} has too many elements")))?;
    Ok(Record {
        name: String::new(),
        dtype,
        shape,
        begin: 0,
        end,
    })
}

fn records() -> Flaw {
    flaw("an array of records cannot be sent; save each of its fields".to_owned())
}

/// What is left of the dictionary.
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    /// Steps over a letter if it is next.
    fn has(&mut self, letter: char) -> bool {
        let rest = self.0.trim_start();
        match rest.strip_prefix(letter) {
            Some(after) => {
                self.0 = after;
                true
            }
            None => false,
        }
    }

    fn take(&mut self, letter: char) -> Result<(), Flaw> {
        match self.has(letter) {
            true => Ok(()),
            false => Err(self.damaged(&format!("{letter:?}"))),
        }
    }

    fn string(&mut self) -> Result<&'a str, Flaw> {
        let rest = self.0.trim_start();
        let quote = rest
            .chars()
            .next()
            .filter(|letter| matches!(letter, '\'' | '"'));
        let end = quote.and_then(|quote| rest[1..].find(quote));
        let Some(end) = end else {
            return Err(self.damaged("a name in quotes"));
        };
        self.0 = &rest[end + 2..];
        Ok(&rest[1..=end])
    }

    fn boolean(&mut self) -> Result<bool, Flaw> {
        let rest = self.0.trim_start();
        for (word, value) in [("True", true), ("False", false)] {
            if let Some(after) = rest.strip_prefix(word) {
                self.0 = after;
                return Ok(value);
            }
        }
        Err(self.damaged("True or False"))
    }

    fn dims(&mut self) -> Result<Vec<u64>, Flaw> {
        self.take('(')?;
        let mut dims = Vec::new();
        while !self.has(')') {
            let rest = self.0.trim_start();
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let dim = rest[..digits].parse();
            dims.push(dim.map_err(|_| self.damaged("a number of elements"))?);
            self.0 = &rest[digits..];
            if !self.has(',') {
                self.take(')')?;
                break;
            }
        }
        Ok(dims)
    }

    fn damaged(&self, wanted: &str) -> Flaw {
        let found: String = self.0.trim_start().chars().take(20).collect();
        flaw(format!(
            "the header has {found:?} where {wanted} belongs; the file is damaged"
        ))
    }
}

const MAGIC: &[u8] = super::npy::MAGIC;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(header: &str, data_bytes: usize) -> Vec<u8> {
        let mut bytes = [MAGIC, &[1, 0], &(header.len() as u16).to_le_bytes()].concat();
        bytes.extend(header.bytes());
        bytes.extend(vec![0; data_bytes]);
        bytes
    }

    fn parsed(header: &str, data_bytes: usize) -> Result<(DType, Vec<u64>), String> {
        let bytes = file(header, data_bytes);
        let parsed = parse(&bytes, bytes.len() as u64);
        let (record, offset) = parsed.map_err(|flaw| flaw.problem)?;
        assert_eq!(offset as usize, bytes.len() - data_bytes);
        Ok((record.dtype, record.shape.dims().to_vec()))
    }

    #[test]
    fn headers_of_numpy_are_read() {
        let read = |descr, shape, data_bytes| {
            let order = "'fortran_order': False";
            let header = format!("{{'descr': '{descr}', {order}, 'shape': {shape}, }}   \n");
            parsed(&header, data_bytes)
        };
        assert_eq!(read("<f4", "(2, 3)", 24), Ok((DType::Float32, vec![2, 3])));
        assert_eq!(read("|u1", "(5,)", 5), Ok((DType::UInt8, vec![5])));
        assert_eq!(read("<c16", "()", 16), Ok((DType::Complex128, vec![])));
        // As `numpy.save` writes arrays of ml_dtypes: bfloat16, float8_e5m2, and all others.
        assert_eq!(read("<V2", "(1,)", 2), Ok((DType::BFloat16, vec![1])));
        assert_eq!(read("<f1", "(3,)", 3), Ok((DType::Float8E5M2, vec![3])));
        assert_eq!(read("<V1", "(3,)", 3), Ok((DType::UInt8, vec![3])));
        assert_eq!(read("|V1", "(3,)", 3), Ok((DType::UInt8, vec![3])));
        assert_eq!(read("|b1", "(0, 7)", 0), Ok((DType::Bool, vec![0, 7])));
        let order = "{\"shape\":(1,9), 'fortran_order':True,'descr':'<i8'}";
        assert_eq!(parsed(order, 72), Ok((DType::Int64, vec![1, 9])));
    }

    #[test]
    fn what_cannot_be_sent_says_what_to_do() {
        let refused = |descr: &str, order, shape, data_bytes| {
            let header =
                format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}");
            parsed(&header, data_bytes).unwrap_err()
        };
        for (text, what) in [
            (refused("'<f4'", "True", "(2, 3)", 24), "ascontiguousarray"),
            (refused("'>f4'", "False", "(2,)", 8), "byte order"),
            (refused("'|O'", "False", "(2,)", 8), "cannot be sent"),
            (
                refused("[('a', '<f4')]", "False", "(2,)", 8),
                "each of its fields",
            ),
            (
                refused("'<f4'", "False", "(2,)", 7),
                "7 bytes follow the header",
            ),
            (refused("'<f4'", "False", "(2,)", 9), "more than one array"),
            (
                refused("'<f8'", "False", "(9999999999, 9999999999)", 0),
                "does not fit",
            ),
            (
                refused("'<f8'", "False", "(-1,)", 0),
                "a number of elements",
            ),
            (refused("'<f8'", "Perhaps", "(1,)", 0), "True or False"),
            (parsed("{'shape': ()}", 0).unwrap_err(), "lacks descr"),
            (parsed("{'color': ()}", 0).unwrap_err(), "color"),
            (parsed("(", 0).unwrap_err(), "'{' belongs"),
        ] {
            assert!(text.contains(what), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            bytes: Vec<u8>,
            text in "[{}()',:a-f <|0-9]{0,60}",
            version in 0u8..5,
        ) {
            let _ = parse(&bytes, bytes.len() as u64);
            let mut start = [MAGIC, &[version, 0], &bytes[..]].concat();
            let _ = parse(&start, start.len() as u64);
            start = file(&text, 8);
            start[6] = version;
            let _ = parse(&start, start.len() as u64);
        }
    }
}
