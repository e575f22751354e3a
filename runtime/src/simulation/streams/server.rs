//! The methods that stream, as servers of the simulation run them.

use bytes::Bytes;
use futures_util::{Stream, stream};
use grpcxx_rpc::{Code, Metadata, Status};

use super::{ANSWER, Numbered, REQUEST, STREAM, StreamPlan, message};
use crate::registry::Functions;
use crate::service::{Methods, Place, Request, Response, Streaming};
use crate::simulation::calls::Kind;
use crate::simulation::model::Watcher;

/// The server's end of a stream.
struct Server {
    id: usize,
    plan: StreamPlan,
    watcher: Watcher,
}

impl Server {
    fn begin(watcher: &Watcher, metadata: &Metadata) -> Self {
        let id = metadata.get(STREAM).and_then(|id| id.parse().ok());
        let id: usize = id.expect("each stream says its number");
        let mut model = watcher.model();
        let Kind::Stream(plan) = model.calls.record(id).kind else {
            panic!("call {id} is no stream");
        };
        let begun = &mut model.streams.of(id).begun;
        *begun += 1;
        let is_first = *begun == 1;
        let streams = &mut model.streams;
        streams.check(is_first, || format!("stream {id} began twice"));
        drop(model);
        Self {
            id,
            plan,
            watcher: watcher.clone(),
        }
    }

    /// Notes that a message has come.
    fn took(&self, got: &Numbered) {
        let mut model = self.watcher.model();
        let streams = &mut model.streams;
        streams.messages += 1;
        let number = streams.of(self.id).taken_by_server;
        streams.of(self.id).taken_by_server += 1;
        let holds = *got == message(self.id, REQUEST, number, self.plan.bytes_max);
        streams.check(holds, || {
            let (id, got) = (self.id, got.number);
            format!("the server of stream {id} got message {got} as the one after {number} others")
        });
    }

    /// The next message to send.
    fn send(&self) -> Numbered {
        let mut model = self.watcher.model();
        let progress = model.streams.of(self.id);
        let number = progress.sent_by_server;
        progress.sent_by_server += 1;
        let unread = number - progress.taken_by_client;
        let streams = &mut model.streams;
        streams.check(unread <= UNREAD_MAX, || {
            format!(
                "{unread} messages of stream {} wait for their reader",
                self.id
            )
        });
        message(self.id, ANSWER, number, self.plan.bytes_max)
    }

    fn end(&self) -> Option<Status> {
        (self.plan.fails).then(|| Status::new(Code::DataLoss, "asked to fail"))
    }
}

/// Lets peers call the methods.
pub(in crate::simulation) fn register(functions: &mut Functions, watcher: &Watcher) {
    functions.insert_service(&methods(watcher), 0, None);
}

fn methods(watcher: &Watcher) -> Methods {
    let [telling, listening, talking] = [watcher; 3].map(Watcher::clone);
    Methods::new(SERVICE, &[], Place::ComputePool)
        .server_stream("Tell", move |request: Request<Numbered>| {
            let server = Server::begin(&telling, request.metadata());
            server.took(request.get_ref());
            async move { Ok(Response::new(tell(server))) }
        })
        .client_stream("Listen", move |request: Request<Streaming<Numbered>>| {
            let server = Server::begin(&listening, request.metadata());
            listen(server, request.into_inner())
        })
        .two_streams("Talk", move |request: Request<Streaming<Numbered>>| {
            let server = Server::begin(&talking, request.metadata());
            async move { Ok(Response::new(talk(server, request.into_inner()))) }
        })
}

fn tell(server: Server) -> impl Stream<Item = Result<Numbered, Status>> + Send + 'static {
    let answers = server.plan.answers;
    stream::try_unfold((server, 0), move |(server, sent)| async move {
        if sent < answers {
            let message = server.send();
            return Ok(Some((message, (server, sent + 1))));
        }
        server.end().map_or(Ok(None), Err)
    })
}

async fn listen(
    server: Server,
    mut messages: Streaming<Numbered>,
) -> Result<Response<Numbered>, Status> {
    let mut taken = 0;
    while taken < server.plan.takes
        && let Some(message) = messages.message().await?
    {
        server.took(&message);
        taken += 1;
    }
    match server.end() {
        Some(status) => Err(status),
        None => Ok(Response::new(Numbered {
            number: taken,
            data: Bytes::new(),
        })),
    }
}

fn talk(
    server: Server,
    messages: Streaming<Numbered>,
) -> impl Stream<Item = Result<Numbered, Status>> + Send + 'static {
    let takes = server.plan.takes;
    stream::try_unfold(
        (server, messages, 0),
        move |(server, mut messages, taken)| async move {
            if taken < takes
                && let Some(message) = messages.message().await?
            {
                server.took(&message);
                let answer = server.send();
                return Ok(Some((answer, (server, messages, taken + 1))));
            }
            server.end().map_or(Ok(None), Err)
        },
    )
}

const SERVICE: &str = "sim.Streams";

/// Most messages that a server makes ahead of a reader: what the reader's end takes, what waits in
/// the connection and what waits in the pipe of the method, with the batch that makes it full.
const UNREAD_MAX: u64 = 3 * 16 * 1024 + 2048;
