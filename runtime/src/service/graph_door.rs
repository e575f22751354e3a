//! Methods of services for peers that know no services: functions whose names are the paths.

use std::sync::Arc;

use grpcxx_rpc::{
    Code, DType, Envelope, GraphCall, Metadata, NamedTensors, REQUEST_FEED, RESPONSE_FETCH,
    Response, Shape, Status, Tensor, Text,
};

use super::method::{Begun, Registered};
use crate::caller::Caller;
use crate::function::{Function, Responder};
use crate::host::wait;

/// A method as a function that takes its message as a vector of bytes, and answers with one.
pub(crate) struct GraphDoor(pub(crate) Arc<Registered>);

impl Function for GraphDoor {
    fn call(&self, call: GraphCall) -> Result<NamedTensors, Status> {
        let answer = match self.0.begin(self.envelope(call)?, &Caller::OWN, 0) {
            Begun::Ended(answer) => answer,
            Begun::Waits(answer) => wait(answer),
            Begun::ForPool(answer) => wait(answer),
        };
        answer.map(|envelope| fetched(&envelope))
    }

    fn start(&self, call: GraphCall, responder: Responder) {
        let answer = |responder: Responder, answer: Result<Envelope, Status>| {
            responder.answer(answer.map(|envelope| Response::Fetched(fetched(&envelope))));
        };
        let envelope = match self.envelope(call) {
            Ok(envelope) => envelope,
            Err(status) => return answer(responder, Err(status)),
        };
        let shard = responder.shard().unwrap_or_default();
        match self.0.begin(envelope, &Caller::OWN, shard) {
            Begun::Ended(ended) => answer(responder, ended),
            Begun::Waits(waits) => {
                let done = move |ended| answer(responder, ended);
                // Nobody tells a function that its caller has gone.
                let _cannot_be_withdrawn = self.0.run(shard, waits, done);
            }
            // It is on a thread of the pool already, and waits for nothing that a client sends.
            Begun::ForPool(runs) => answer(responder, wait(runs)),
        }
    }

    fn may_block(&self) -> bool {
        self.0.may_block()
    }
}

impl GraphDoor {
    fn envelope(&self, mut call: GraphCall) -> Result<Envelope, Status> {
        let path = self.0.path().as_str();
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
}

fn fetched(envelope: &Envelope) -> NamedTensors {
    let message = envelope.message();
    let tensor = Tensor {
        dtype: DType::UInt8,
        shape: Shape::vector(message.len()),
        is_dead: false,
        data: message,
    };
    NamedTensors::from_buf([(Text::from(RESPONSE_FETCH), tensor)])
}
