//! What the fuzz targets do with their bytes; the tests replay the corpus with the same functions.

use grpcxx_memory::Buffer;
use grpcxx_rpc::wire::{
    Announcement, HEADER_BYTES, Heads, RECORD_BYTES, RequestHeader, ResponseHeader, ShapeForms,
    decode_graph_metadata, decode_names, decode_receive, decode_record, encode_graph_metadata,
    encode_heads, encode_names, encode_receive, encode_record,
};
use grpcxx_rpc::{
    CallOptions, ClientConnection, Code, ConnectionLimits, DType, Envelope, Features, Method,
    Request, Response, ServerConnection, Shape, Status, Tensor, TensorMeta,
};
use grpcxx_transport::Time;

use super::driver::Port;
use super::make::{floats, fuse, graph, message, receive};
use super::operations::operations;
use super::streams::streams;
use super::tokens::{token_client, token_server};

/// What a target does with the bytes of a fuzzer.
pub type Target = fn(&[u8]);

/// All targets by name, which is also that of the folder with their corpus.
pub const TARGETS: [(&str, Target); 13] = [
    ("header", header),
    ("record", record),
    ("heads", heads),
    ("graph_metadata", graph_metadata),
    ("receive_request", receive_request),
    ("announcement", announcement),
    ("strings", strings),
    ("client_responses", client_responses),
    ("server_requests", server_requests),
    ("operations", operations),
    ("streams", streams),
    ("token_client", token_client),
    ("token_server", token_server),
];

/// Whatever is a header is the same header when it is written again.
pub fn header(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<HEADER_BYTES>() else {
        return;
    };
    if let Ok(header) = RequestHeader::decode(bytes) {
        assert_eq!(header.encode(), *bytes);
    }
    if let Ok(header) = ResponseHeader::decode(bytes) {
        let again = header.encode();
        assert_eq!(again[8..], bytes[8..]);
    }
}

/// Whatever is a record describes a tensor that can be sent, unless its shape needs the other form.
pub fn record(data: &[u8]) {
    let Some(bytes) = data.first_chunk::<RECORD_BYTES>() else {
        return;
    };
    let Ok(meta) = decode_record(bytes, ShapeForms::Packed) else {
        return;
    };
    if meta.data_bytes <= 1 << 16 {
        let tensor = zeros(&meta);
        match encode_record(&tensor, ShapeForms::Packed) {
            Ok(again) => assert_eq!(decode_record(&again, ShapeForms::Packed), Ok(meta)),
            Err(status) => assert_eq!(status.code, Code::Unimplemented),
        }
    }
}

/// Whatever is heads is the same heads when they are written again, each with the one before it if
/// they are alike. The first byte says how many tensors are wanted.
pub fn heads(data: &[u8]) {
    let Some((&wanted, data)) = data.split_first() else {
        return;
    };
    let Ok(found) = Heads::decode(data, wanted.into(), ShapeForms::Packed) else {
        return;
    };
    let counts = found.runs().iter().map(|(count, _)| *count as usize);
    assert_eq!(counts.sum::<usize>(), usize::from(wanted));
    if found.data_bytes() > 1 << 16 {
        return;
    }
    let metas = found.runs().iter();
    let metas = metas.flat_map(|(count, meta)| std::iter::repeat_n(meta, *count as usize));
    let tensors: Vec<Tensor> = metas.map(zeros).collect();
    let mut again = Vec::new();
    if encode_heads(&tensors, ShapeForms::Packed, &mut again).is_ok() {
        let again =
            Heads::decode(&again, wanted.into(), ShapeForms::Packed).expect("these are heads");
        assert_eq!(again.data_bytes(), found.data_bytes());
        assert!(again.runs().len() <= found.runs().len());
    }
}

fn zeros(meta: &TensorMeta) -> Tensor {
    Tensor {
        dtype: meta.dtype,
        shape: meta.shape.clone(),
        is_dead: meta.is_dead,
        data: vec![0; meta.data_bytes as usize].into(),
    }
}

/// Whatever is metadata is the same metadata when it is written again; names alike.
pub fn graph_metadata(data: &[u8]) {
    let buffer = Buffer::from(data.to_vec());
    if let Ok((mut call, names)) = decode_graph_metadata(&buffer, NAMES_MAX) {
        assert!(names.len() <= NAMES_MAX && call.fetches.len() <= NAMES_MAX);
        let feeds = names.iter().map(|name| (name.clone(), Tensor::dead()));
        call.feeds = feeds.collect();
        let mut again = Vec::new();
        encode_graph_metadata(&call, &mut again).expect("names are as long as they were");
        call.feeds.clear();
        assert_eq!(
            decode_graph_metadata(&again.into(), NAMES_MAX),
            Ok((call, names))
        );
    }
    if let Ok(names) = decode_names(&buffer, NAMES_MAX) {
        let mut again = Vec::new();
        encode_names(names.iter(), &mut again).expect("names are as long as they were");
        assert_eq!(again, data);
    }
}

/// Whatever is a request is the same request when it is written again.
pub fn receive_request(data: &[u8]) {
    let buffer = Buffer::from(data.to_vec());
    for keys_max in [1, 16] {
        if let Ok(request) = decode_receive(&buffer, keys_max) {
            let mut again = Vec::new();
            encode_receive(request.step_id, request.keys.iter(), &mut again);
            assert_eq!(decode_receive(&again.into(), keys_max), Ok(request));
        }
    }
}

/// Whatever is an announcement is the same when it is written again, and is found behind anything.
pub fn announcement(data: &[u8]) {
    if let Ok(found) = Announcement::find(data) {
        if let Some(found) = &found {
            let mut again = Vec::new();
            found.encode(&mut again);
            assert_eq!(again.len(), found.len_bytes());
            assert_eq!(
                Announcement::find(&again).as_ref(),
                Ok(&Some(found.clone()))
            );
        }
        let mut longer = data.to_vec();
        let other = Announcement {
            features: Features::from_bits(found.map_or(1, |found| !found.features.bits())),
            ..Announcement::default()
        };
        other.encode(&mut longer);
        assert_eq!(Announcement::find(&longer), Ok(Some(other)));
    }
}

/// Whatever is a tensor of strings has as many as its shape asks for, and the same ones when they
/// are written again. The first byte is the rank, which so many dimensions of a byte follow.
pub fn strings(data: &[u8]) {
    let Some((&rank, data)) = data.split_first() else {
        return;
    };
    let Some((dims, data)) = data.split_at_checked(usize::from(rank % 5)) else {
        return;
    };
    let dims: Vec<u64> = dims.iter().map(|&dim| dim.into()).collect();
    let Ok(shape) = Shape::new(&dims) else {
        return;
    };
    let Ok(tensor) = Tensor::new(DType::String, shape.clone(), data.to_vec()) else {
        return;
    };
    let Ok(strings) = tensor.strings() else {
        return;
    };
    assert_eq!(strings.len() as u64, shape.num_elements());
    let elements = strings.iter().map(|element| &element[..]);
    let again = Tensor::from_strings(shape, elements).expect("these are the elements");
    assert_eq!(again.strings(), Ok(strings));
}

/// Shows bytes to a client with one call of each kind. The first byte says in which pieces they
/// come.
pub fn client_responses(data: &[u8]) {
    let Some((&pieces, data)) = data.split_first() else {
        return;
    };
    let mut port = Port::new(ClientConnection::new(limits(), Features::ALL));
    port.landings.shares = pieces % 2 == 1;
    let requests = [
        message(Method::RunGraph, b""),
        receive("k"),
        fuse(&["a", "b", "c"]),
        graph("f", vec![("x", floats(&[1.0]))], &["y", "x"]),
        graph("f", vec![], &[]),
        receive("cancelled"),
    ];
    let calls = requests.map(|request| {
        let options = CallOptions::default();
        port.end
            .call(Time::ZERO, request, options)
            .expect("there is room")
    });
    port.drain();
    port.end.cancel(calls[5]);
    offer(&mut port, pieces, data);

    port.close(&Status::new(Code::Unavailable, "gone"));
    let mut finished: Vec<_> = std::iter::from_fn(|| port.end.poll_finished())
        .map(|finished| finished.call)
        .collect();
    finished.sort_unstable();
    assert_eq!(finished, calls, "each call ends once");
    assert_eq!(port.end.outstanding_calls(), 0);
}

/// Shows bytes to a server that answers what it understands. The first byte says in which pieces
/// they come.
pub fn server_requests(data: &[u8]) {
    let Some((&pieces, data)) = data.split_first() else {
        return;
    };
    let mut port = Port::new(ServerConnection::new(limits(), Features::ALL));
    let mut answers = 0usize;
    for piece in data.chunks(piece_bytes(pieces)) {
        port.offer(piece);
        // Every third request is left without an answer, until the link is gone.
        while let Some(incoming) = port.end.poll_request() {
            answers += 1;
            if !answers.is_multiple_of(3) {
                let response = answer(&incoming.request);
                assert!(port.end.answer(incoming.id, response));
            }
        }
        check_responses(&port.drain());
        while port.end.poll_cancelled().is_some() {}
        port.resume();
        port.end.handle_timeout(port.now);
    }
    check_memory(&port.landings, data);
    let unanswered: Vec<_> = port.end.outstanding_requests().collect();
    port.close(&Status::new(Code::Unavailable, "gone"));
    let mut cancelled: Vec<_> = std::iter::from_fn(|| port.end.poll_cancelled()).collect();
    cancelled.sort_unstable();
    assert_eq!(
        cancelled, unanswered,
        "each request that was handed out ends once"
    );
    assert_eq!(port.end.outstanding_requests().count(), 0);
}

/// Limits that a fuzzer can reach.
pub fn limits() -> ConnectionLimits {
    ConnectionLimits::default().with(|limits| {
        limits.outstanding_calls = 8;
        limits.frame_bytes = FRAME_BYTES_MAX;
        limits.message_bytes = 1 << 12;
        limits.names_bytes = 1 << 10;
        limits.records = NAMES_MAX;
        limits.error_text_bytes = 64;
        limits.whole_frame_bytes = 2000;
        limits.chunk_bytes = 2500;
    })
}

/// An answer that fits the request.
pub fn answer(request: &Request) -> Result<Response, Status> {
    Ok(match request {
        Request::Message { body, .. } => Response::Message(body.clone()),
        Request::RecvTensor { step_id, .. } => Response::from(floats(&[*step_id as f32])),
        Request::FuseRecvTensor { keys, .. } => {
            Response::Tensors(keys.iter().map(|key| floats(&[key.len() as f32])).collect())
        }
        Request::StarRunGraph(call) => Response::Fetched(
            call.fetches
                .iter()
                .map(|name| (name.clone(), floats(&[name.len() as f32])))
                .collect(),
        ),
        Request::Unary(envelope) | Request::Stream(envelope) => Response::Unary(echo(envelope)),
    })
}

/// An answer with the metadata and the message of a request.
fn echo(envelope: &Envelope) -> Envelope {
    let mut writer = Envelope::answer(&envelope.request_metadata(), 0);
    writer.attach(envelope.message());
    writer.finish()
}

fn offer<E: super::End>(port: &mut Port<E>, pieces: u8, data: &[u8]) {
    for piece in data.chunks(piece_bytes(pieces)) {
        port.offer(piece);
    }
    check_memory(&port.landings, data);
}

/// At most one piece of memory is waiting for bytes; all others hold bytes that were there.
fn check_memory(landings: &super::HeapLandings, data: &[u8]) {
    assert!(landings.total_bytes as u64 <= data.len() as u64 + FRAME_BYTES_MAX);
}

/// Whatever a peer sends, what it gets is whole frames of plain star.
fn check_responses(mut bytes: &[u8]) {
    while let Some(head) = bytes.first_chunk::<HEADER_BYTES>() {
        let header = ResponseHeader::decode(head).expect("a response begins with BBBB");
        let end = HEADER_BYTES + header.payload_bytes as usize;
        assert!(
            header.status == 0 || end > HEADER_BYTES,
            "no failure is without a text"
        );
        bytes = &bytes[end..];
    }
    assert!(bytes.is_empty());
}

/// Length of the pieces in which bytes come.
pub fn piece_bytes(pieces: u8) -> usize {
    match pieces {
        0 => usize::MAX,
        pieces => usize::from(pieces),
    }
}

const NAMES_MAX: usize = 64;
const FRAME_BYTES_MAX: u64 = 1 << 20;
