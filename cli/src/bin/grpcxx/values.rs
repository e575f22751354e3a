use grpcxx_rpc::{DType, Element, Tensor};

/// The first elements of a tensor as text, for types that people can read.
pub(crate) fn preview(tensor: &Tensor) -> String {
    if tensor.is_dead {
        return "dead".to_owned();
    }
    match tensor.dtype {
        DType::Float32 => numbers::<f32>(tensor),
        DType::Float64 => numbers::<f64>(tensor),
        DType::Int8 => numbers::<i8>(tensor),
        DType::Int16 => numbers::<i16>(tensor),
        DType::Int32 => numbers::<i32>(tensor),
        DType::Int64 => numbers::<i64>(tensor),
        DType::UInt8 => numbers::<u8>(tensor),
        DType::UInt16 => numbers::<u16>(tensor),
        DType::UInt32 => numbers::<u32>(tensor),
        DType::UInt64 => numbers::<u64>(tensor),
        DType::Bool => numbers::<bool>(tensor),
        DType::String => strings(tensor),
        _ => format!("{} bytes", tensor.data.len()),
    }
}

fn numbers<T: Element + ToString>(tensor: &Tensor) -> String {
    match tensor.elements::<T>() {
        Ok(elements) => join(elements.iter().map(T::to_string), elements.len()),
        Err(status) => status.message.into_owned(),
    }
}

fn strings(tensor: &Tensor) -> String {
    match tensor.strings() {
        Ok(strings) => join(
            strings
                .iter()
                .map(|bytes| format!("{:?}", String::from_utf8_lossy(bytes))),
            strings.len(),
        ),
        Err(status) => status.message.into_owned(),
    }
}

fn join(elements: impl Iterator<Item = String>, count: usize) -> String {
    let shown: Vec<String> = elements.take(SHOWN_MAX).collect();
    let rest = if count > SHOWN_MAX { " ..." } else { "" };
    format!("{}{rest}", shown.join(" "))
}

const SHOWN_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use grpcxx_rpc::Shape;

    #[test]
    fn elements_are_shown_up_to_a_limit() {
        assert_eq!(preview(&Tensor::scalar(1.5f64)), "1.5");
        let many = Tensor::from_slice(Shape::new(&[9]).unwrap(), &[7u8; 9]).unwrap();
        assert_eq!(preview(&many), "7 7 7 7 7 7 7 7 ...");
        let text = Tensor::from_strings(Shape::SCALAR, [&b"x\"y"[..]]).unwrap();
        assert_eq!(preview(&text), "\"x\\\"y\"");
        assert_eq!(preview(&Tensor::dead()), "dead");
    }
}
