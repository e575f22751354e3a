use std::time::Duration;

use grpcxx_rpc::{
    Code, DType, GraphCall, Request, Response, Shape, Status, Tensor, TensorMeta, Text,
};
use grpcxx_runtime::{Client, Peer, STORE_LIST};

/// A tensor in the store of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its name.
    pub name: String,
    /// Type, shape and length.
    pub meta: TensorMeta,
}

/// A tensor of a type that this version does not know, as a newer peer may have one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownStored {
    /// Its name.
    pub name: String,
    /// The number of its type.
    pub dtype: i32,
    /// Its shape.
    pub shape: Shape,
    /// Length of its data.
    pub data_bytes: u64,
}

/// All that the store of a task holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// What can be pulled, in byte order of the names.
    pub stored: Vec<Stored>,
    /// What this version can only name, in the same order.
    pub unknown: Vec<UnknownStored>,
}

/// What the store of `peer` holds, in byte order of the names. A tensor of a type that is not known
/// here is left out, and the log names it.
///
/// # Errors
/// The call failed, or the answer makes no sense (`DATA_LOSS`).
pub fn list(
    client: &Client,
    peer: &Peer,
    timeout: Option<Duration>,
) -> Result<Vec<Stored>, Status> {
    let listed = list_all(client, peer, timeout)?;
    for UnknownStored { name, dtype, .. } in &listed.unknown {
        tracing::warn!("tensor {name:?} is left out: its type {dtype} is not known here");
    }
    Ok(listed.stored)
}

/// All that the store of `peer` holds, with what this version does not know.
///
/// # Errors
/// As of [`list`].
pub fn list_all(client: &Client, peer: &Peer, timeout: Option<Duration>) -> Result<Listed, Status> {
    let call = GraphCall {
        graph_handle: Text::from(STORE_LIST),
        fetches: COLUMNS.iter().map(|column| Text::from(*column)).collect(),
        ..GraphCall::default()
    };
    let request = Request::StarRunGraph(Box::new(call));
    match client.call(peer, request, timeout).wait()? {
        Response::Fetched(columns) => parse(&columns),
        Response::Message(_) | Response::Tensors(_) | Response::Unary(_) => {
            Err(senseless("no columns"))
        }
    }
}

fn parse(columns: &[(Text, Tensor)]) -> Result<Listed, Status> {
    let column = |wanted: &str| {
        columns
            .iter()
            .find(|(name, _)| name == wanted)
            .map(|(_, tensor)| tensor)
            .ok_or_else(|| senseless("a column is missing"))
    };
    let names = column("names")?.strings()?;
    let shapes = column("shapes")?.strings()?;
    let dtypes = column("dtypes")?.elements::<i32>()?;
    let bytes = column("bytes")?.elements::<i64>()?;
    let lengths = [shapes.len(), dtypes.len(), bytes.len()];
    if lengths.iter().any(|length| *length != names.len()) {
        return Err(senseless("its columns differ in length"));
    }
    let mut listed = Listed::default();
    let places = names.iter().zip(&shapes);
    for ((name, shape), (number, bytes)) in places.zip(dtypes.iter().zip(bytes.iter())) {
        listed.add(name, shape, *number, *bytes)?;
    }
    Ok(listed)
}

impl Listed {
    /// Adds the tensor of a line.
    fn add(&mut self, name: &[u8], shape: &[u8], number: i32, bytes: i64) -> Result<(), Status> {
        let name = text(name)?.to_owned();
        let shape = parse_shape(text(shape)?)?;
        let data_bytes = u64::try_from(bytes).map_err(|_| senseless("a negative length"))?;
        let Some(dtype) = DType::from_number(number) else {
            self.unknown.push(UnknownStored {
                name,
                dtype: number,
                shape,
                data_bytes,
            });
            return Ok(());
        };
        let meta = TensorMeta {
            dtype,
            shape,
            is_dead: false,
            data_bytes,
        };
        self.stored.push(Stored { name, meta });
        Ok(())
    }
}

fn text(bytes: &[u8]) -> Result<&str, Status> {
    std::str::from_utf8(bytes).map_err(|_| senseless("a text that is not UTF-8"))
}

/// Reads `[2, 3]`.
fn parse_shape(text: &str) -> Result<Shape, Status> {
    let inner = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
        .ok_or_else(|| senseless("a shape without brackets"))?;
    let dims: Vec<u64> = inner
        .split(',')
        .map(str::trim)
        .filter(|dim| !dim.is_empty())
        .map(|dim| {
            dim.parse()
                .map_err(|_| senseless("a dimension that is no number"))
        })
        .collect::<Result<_, Status>>()?;
    Shape::new(&dims).map_err(|error| senseless(&error.to_string()))
}

fn senseless(what: &str) -> Status {
    Status::new(
        Code::DataLoss,
        format!(
            "the answer to {STORE_LIST} makes no sense ({what}); is the peer of another version?"
        ),
    )
}

const COLUMNS: [&str; 4] = ["names", "dtypes", "shapes", "bytes"];

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> Vec<(Text, Tensor)> {
        let shape = Shape::new(&[2]).unwrap();
        let texts = |texts: [&str; 2]| {
            Tensor::from_strings(shape.clone(), texts.iter().map(|text| text.as_bytes())).unwrap()
        };
        vec![
            (Text::from("names"), texts(["a", "b"])),
            (Text::from("shapes"), texts(["[]", "[2, 3]"])),
            (
                Text::from("dtypes"),
                Tensor::from_slice(shape.clone(), &[1i32, 3]).unwrap(),
            ),
            (
                Text::from("bytes"),
                Tensor::from_slice(shape.clone(), &[4i64, 24]).unwrap(),
            ),
        ]
    }

    #[test]
    fn columns_become_tensors() {
        let stored = parse(&columns()).unwrap().stored;
        assert_eq!(stored[0].name, "a");
        assert_eq!(stored[0].meta.shape, Shape::SCALAR);
        assert_eq!(stored[1].meta.dtype, DType::Int32);
        assert_eq!(stored[1].meta.shape.dims(), [2, 3]);
        assert_eq!(stored[1].meta.data_bytes, 24);
    }

    /// As a peer of a later version may have them.
    #[test]
    fn tensors_of_unknown_types_are_told_apart() {
        let mut newer = columns();
        newer[2].1 = Tensor::from_slice(Shape::new(&[2]).unwrap(), &[99i32, 3]).unwrap();
        let Listed { stored, unknown } = parse(&newer).unwrap();
        assert_eq!((stored.len(), &*stored[0].name), (1, "b"));
        let [unknown] = &unknown[..] else {
            panic!("{unknown:?}");
        };
        assert_eq!(
            (&*unknown.name, unknown.dtype, unknown.data_bytes),
            ("a", 99, 4)
        );
    }

    #[test]
    fn answers_without_sense_are_refused() {
        let mut short = columns();
        short.pop();
        assert_eq!(parse(&short).unwrap_err().code, Code::DataLoss);
        let mut uneven = columns();
        uneven[3].1 = Tensor::from_slice(Shape::new(&[1]).unwrap(), &[4i64]).unwrap();
        assert_eq!(parse(&uneven).unwrap_err().code, Code::DataLoss);
        for shape in ["2, 3", "[x]", "[-1]", "[18446744073709551615, 2]"] {
            assert!(parse_shape(shape).is_err(), "{shape}");
        }
    }
}
