//! Methods of services for peers that know no services: graph calls of functions whose names are
//! the paths.

use grpcxx_rpc::{
    Code, DType, Envelope, GraphCall, Metadata, NamedTensors, REQUEST_FEED, RESPONSE_FETCH,
    Response, Shape, Status, Tensor, Text,
};

use super::method::Registered;

/// What a graph call says to a method: its message is a vector of bytes.
pub(crate) fn envelope(method: &Registered, mut call: GraphCall) -> Result<Envelope, Status> {
    let path = method.path().as_str();
    let tensor = call.take_feed(REQUEST_FEED)?;
    let fetches_answer = matches!(&call.fetches[..], [name] if name.as_str() == RESPONSE_FETCH);
    if tensor.dtype != DType::UInt8 || tensor.shape.rank() != 1 || !fetches_answer {
        let text = format!(
            "{path} is the method of a service: feed \"{REQUEST_FEED}\" as a vector of uint8, \
                 and fetch \"{RESPONSE_FETCH}\" alone"
        );
        return Err(Status::new(Code::InvalidArgument, text));
    }
    let mut writer = Envelope::request(path, &Metadata::default(), 0)?;
    writer.attach(tensor.data.into_private());
    Ok(writer.finish())
}

/// What a method answers, as one vector of bytes.
pub(crate) fn response(envelope: Envelope) -> Response {
    let message = envelope.message();
    let tensor = Tensor {
        dtype: DType::UInt8,
        shape: Shape::vector(message.len()),
        is_dead: false,
        data: message,
    };
    Response::Fetched(NamedTensors::from_buf([(
        Text::from(RESPONSE_FETCH),
        tensor,
    )]))
}
