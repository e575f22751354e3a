//! A client and a server without a link between them.

use grpcxx_rpc::wire::Features;
use grpcxx_rpc::{
    CallId, CallOptions, ClientConnection, ConnectionLimits, Finished, Incoming, Method, Reason,
    Request, Response, ServerConnection, Status, Tensor,
};

use super::driver::{ClientEnd, Port, ServerEnd, carry};

/// A client and a server, and the pieces in which bytes cross between them.
pub struct Pair {
    pub client: ClientEnd,
    pub server: ServerEnd,
    pub piece_bytes: usize,
}

impl Pair {
    pub fn new(client: Features, server: Features) -> Self {
        Self::with_limits(ConnectionLimits::default(), client, server)
    }

    pub fn plain() -> Self {
        Self::new(Features::NONE, Features::NONE)
    }

    /// Both sides have announced everything.
    pub fn announced() -> Self {
        Self::announced_with_limits(ConnectionLimits::default())
    }

    /// Both sides have announced everything, within these limits.
    pub fn announced_with_limits(limits: ConnectionLimits) -> Self {
        let mut pair = Self::with_limits(limits, Features::ALL, Features::ALL);
        pair.answer_announcement();
        assert_eq!(pair.client.end.peer_features(), Some(Features::ALL));
        assert_eq!(pair.client.end.poll_finished(), None);
        pair
    }

    /// Lets the server say what it knows. Nothing else was asked before it has.
    pub fn answer_announcement(&mut self) {
        self.carry_requests();
        let status = self.request();
        assert_eq!(status.request.method(), Some(Method::GetStatus));
        assert_eq!(self.server.end.poll_request(), None);
        let body = Ok(Response::Message(vec![].into()));
        assert!(self.server.end.answer(status.id, body));
        self.carry_responses();
    }

    pub fn with_limits(limits: ConnectionLimits, client: Features, server: Features) -> Self {
        Self {
            client: Port::new(ClientConnection::new(limits, client)),
            server: Port::new(ServerConnection::new(limits, server)),
            piece_bytes: usize::MAX,
        }
    }

    pub fn carry_requests(&mut self) {
        carry(&mut self.client, &mut self.server, self.piece_bytes);
        assert_eq!(self.server.violation, None);
    }

    pub fn carry_responses(&mut self) {
        carry(&mut self.server, &mut self.client, self.piece_bytes);
        assert_eq!(self.client.violation, None);
    }

    pub fn call(&mut self, request: Request) -> CallId {
        self.call_with(request, CallOptions::default())
    }

    pub fn call_with(&mut self, request: Request, options: CallOptions) -> CallId {
        let now = self.client.now;
        self.client.end.call(now, request, options).unwrap()
    }

    pub fn request(&mut self) -> Incoming {
        self.server.end.poll_request().expect("a request")
    }

    pub fn finished(&mut self) -> Finished {
        self.client.end.poll_finished().expect("a result")
    }

    /// A whole call: the request arrives unchanged, the answer too.
    pub fn round_trip(&mut self, request: Request, response: Result<Response, Status>) {
        let call = self.call(request.clone());
        self.carry_requests();
        let incoming = self.request();
        assert_eq!(incoming.request, request);
        assert!(self.server.end.answer(incoming.id, response.clone()));
        assert!(!self.server.end.answer(incoming.id, response.clone()));
        self.carry_responses();
        let finished = self.finished();
        assert_eq!(finished.call, call);
        let arrived = response.map_err(|status| status.because(Reason::Peer));
        assert_eq!(finished.result, arrived);
        assert_eq!(self.client.end.outstanding_calls(), 0);
        assert_eq!(self.server.end.outstanding_requests().count(), 0);
    }
}

/// A successful answer of tensors.
pub fn tensors(tensors: impl IntoIterator<Item = Tensor>) -> Result<Response, Status> {
    Ok(Response::Tensors(tensors.into_iter().collect()))
}
