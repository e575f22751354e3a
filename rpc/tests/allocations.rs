//! In steady state a connection allocates nothing: frames, slots, queues and heaps are reused.

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_rpc::{
    CallOptions, ClientConnection, ConnectionLimits, Features, ImmediateHit, Landings, Method,
    Request, Response, ServerConnection, Status, TensorMeta, Text,
};
use grpcxx_transport::{Frame, Next, Outcome, Time};

use crate::support::make;

/// Memory that was there before.
struct Prepared {
    buffers: Vec<BufferMut>,
}

impl Prepared {
    fn new(count: usize, len: usize) -> Self {
        Self {
            buffers: (0..count).map(|_| BufferMut::zeroed(len)).collect(),
        }
    }

    fn take(&mut self, len: usize) -> Result<BufferMut, Status> {
        let mut buffer = self.buffers.pop().expect("enough was prepared");
        buffer.truncate(len);
        Ok(buffer)
    }
}

impl Landings for Prepared {
    fn tensor(
        &mut self,
        _: u64,
        _: usize,
        meta: &TensorMeta,
        _: usize,
    ) -> Result<BufferMut, Status> {
        self.take(meta.data_bytes as usize)
    }

    fn message(&mut self, len: usize, _: usize) -> Result<BufferMut, Status> {
        self.take(len)
    }

    fn grow(&mut self, _: BufferMut, _: usize) -> Result<BufferMut, Status> {
        unreachable!("memory was for all bytes")
    }

    fn block(&mut self, _: u64, len: usize) -> Option<BufferMut> {
        self.take(len).ok()
    }

    fn known_key(&mut self, _: &[u8]) -> Option<Text> {
        None
    }

    fn immediate_hit(&mut self, _: i64, _: &Text, _: usize) -> Option<ImmediateHit<'_>> {
        None
    }
}

/// Bytes of one direction, in memory that stays.
struct Wire {
    bytes: Vec<u8>,
}

impl Wire {
    fn put(&mut self, frame: &Frame) {
        for segment in frame.segments() {
            self.bytes.extend_from_slice(segment);
        }
    }
}

/// One call there and back, in whole frames.
fn round_trip(
    client: &mut ClientConnection,
    server: &mut ServerConnection,
    request: Request,
    response: Response,
    memory: &mut Prepared,
    wire: &mut Wire,
) -> Response {
    let now = Time::ZERO;
    let options = CallOptions {
        token: 1,
        deadline: Some(Time::from_nanos(1_000_000)),
        ..CallOptions::default()
    };
    client.call(now, request, options).expect("there is room");
    wire.bytes.clear();
    while let Some(frame) = client.poll_frame() {
        wire.put(&frame);
        client.handle_sent(frame, Outcome::Done);
    }
    let progress = server.handle_received(now, &wire.bytes, memory).unwrap();
    assert!(matches!(progress.next, Next::Head { .. }));
    let mut incoming = server.poll_request().expect("the request is whole");
    if incoming.request.method() == Some(Method::GetStatus) {
        let body = Response::Message(Buffer::new());
        assert!(server.answer(incoming.id, Ok(body)));
        incoming = server.poll_request().expect("this one too");
    }
    assert!(server.answer(incoming.id, Ok(response)));
    wire.bytes.clear();
    while let Some(frame) = server.poll_frame() {
        wire.put(&frame);
        server.handle_sent(frame, Outcome::Done);
    }
    let progress = client.handle_received(now, &wire.bytes, memory).unwrap();
    assert!(matches!(progress.next, Next::Head { .. }));
    client
        .poll_finished()
        .expect("the response is whole")
        .result
        .unwrap()
}

/// The counts of a thousand calls, after a hundred that fill the pools.
fn allocations_per_thousand(features: Features, request: &Request, response: &Response) -> u64 {
    let limits = ConnectionLimits::default();
    let mut client = ClientConnection::new(limits, features);
    let mut server = ServerConnection::new(limits, features);
    let mut memory = Prepared::new(3000, 4096);
    let mut wire = Wire {
        bytes: Vec::with_capacity(1 << 16),
    };
    let mut one = || {
        let (request, response) = (request.clone(), response.clone());
        round_trip(
            &mut client,
            &mut server,
            request,
            response,
            &mut memory,
            &mut wire,
        )
    };
    for _ in 0..100 {
        assert_eq!(one(), *response);
    }
    allocation_counter::measure(|| {
        for _ in 0..1000 {
            one();
        }
    })
    .count_total
}

/// What freezing a buffer of the heap costs, which memory of an arena does not.
fn allocations_of_a_heap_buffer() -> u64 {
    let buffer = BufferMut::zeroed(64);
    allocation_counter::measure(|| drop(buffer.freeze().clone())).count_total
}

#[test]
fn a_tensor_received_in_steady_state_allocates_nothing() {
    let request = Request::RecvTensor {
        step_id: 1,
        key: Text::from(make::KEY),
    };
    for len in [0, 4, 400, 4000] {
        let tensor = make::bytes_tensor(len, 1);
        let response = Response::from(tensor);
        // One buffer holds the key, and one the data if there is any.
        let buffers = if len == 0 { 1 } else { 2 };
        let heap = allocations_of_a_heap_buffer() * buffers * 1000;
        assert_eq!(
            allocations_per_thousand(Features::NONE, &request, &response),
            heap,
            "{len} bytes"
        );
    }
}

/// The lists that a receive of several keys needs belong to the request and to its answer, which
/// are the caller's: their number does not grow with that of the keys.
#[test]
fn tensors_received_together_cost_a_fixed_number_of_lists() {
    let lists_of = |features: Features, count: usize, len: usize| {
        let keys = (0..count).map(|_| Text::from(make::KEY)).collect();
        let request = Request::FuseRecvTensor { step_id: 1, keys };
        let tensors = (0..count).map(|_| make::bytes_tensor(len, 1)).collect();
        let response = Response::Tensors(tensors);
        let all = allocations_per_thousand(features, &request, &response) as f64 / 1000.0;
        // The buffer of the message, that of the data, and the lists that the test itself clones.
        let buffers = if len == 0 { 1 } else { 2 };
        all - (allocations_of_a_heap_buffer() * buffers + 2) as f64
    };
    for (features, len) in [
        (Features::NONE, 0),
        (Features::HEADS_FIRST, 0),
        (Features::HEADS_FIRST, 40),
    ] {
        let (few, many) = (lists_of(features, 4, len), lists_of(features, 20, len));
        assert!(few <= 5.0, "{few} lists for a call with 4 keys");
        assert!(many - few <= 3.0, "{many} lists for a call with 20 keys");
    }
}

#[test]
fn a_message_in_steady_state_allocates_nothing() {
    let request = Request::Message {
        method: Method::RunGraph,
        body: Buffer::from(&[1; 100][..]),
    };
    let response = Response::Message(Buffer::from(&[2; 1000][..]));
    let heap = allocations_of_a_heap_buffer() * 2 * 1000;
    assert_eq!(
        allocations_per_thousand(Features::NONE, &request, &response),
        heap
    );
}
