//! Connections of the gRPC port as they arrive.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use grpcxx_memory::forks::Mark;
use grpcxx_runtime::policy::Authority;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::transport::server::Connected;

use crate::connections::{Caller, ConnectionPlace, Connections};
use crate::handshakes::Handshakes;
use crate::limits::{ACCEPT_RETRY_DELAY, FIRST_BYTE_TIMEOUT};
use crate::link::Link;

/// Connections as they arrive, as many as there may be.
pub(crate) struct Incoming {
    // Before what it marks.
    _mark: Mark,
    listener: TcpListener,
    connections: Arc<Connections>,
    authority: Arc<Authority>,
    handshakes: Arc<Handshakes>,
    /// Connections whose handshake is under way; none if TLS is off.
    beginning: JoinSet<Option<Connection>>,
    /// Set while the process lacks what a new connection needs.
    retry: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    pub(crate) fn new(
        listener: TcpListener,
        connections: Arc<Connections>,
        authority: Arc<Authority>,
        handshakes: Arc<Handshakes>,
    ) -> Self {
        Self {
            _mark: Mark::of(&listener),
            listener,
            connections,
            authority,
            handshakes,
            beginning: JoinSet::new(),
            retry: None,
        }
    }

    /// The place of a connection, if it may have one.
    fn admit(&self, peer: SocketAddr) -> Option<ConnectionPlace> {
        if !self.authority.admits(peer) {
            return None;
        }
        let place = self.connections.open(peer);
        if place.is_none() {
            tracing::warn!(
                %peer,
                "a gRPC connection was closed at once: as many as are allowed carry calls"
            );
        }
        place
    }

    /// Lets an accepted connection begin: at once, or once its handshake is over.
    fn begin(&mut self, stream: TcpStream, peer: SocketAddr) -> Option<Connection> {
        let mut place = self.admit(peer)?;
        // A socket that takes no options is about to fail anyway.
        let _ = stream.set_nodelay(true);
        if self.handshakes.are_off() {
            return Some(Connection::new(Link::Plain(stream), place));
        }
        let handshakes = Arc::clone(&self.handshakes);
        self.beginning.spawn(async move {
            let (link, identity) = tokio::select! {
                biased;
                _ = &mut place.closing => return None,
                passed = handshakes.pass(stream, peer) => passed?,
            };
            place.identify(identity);
            Some(Connection::new(link, place))
        });
        None
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            while let Poll::Ready(Some(begun)) = self.beginning.poll_join_next(context) {
                // A handshake that panicked has been logged.
                if let Ok(Some(connection)) = begun {
                    return Poll::Ready(Some(Ok(connection)));
                }
            }
            if let Some(retry) = &mut self.retry {
                ready!(retry.as_mut().poll(context));
                self.retry = None;
            }
            match ready!(self.listener.poll_accept(context)) {
                Ok((stream, peer)) => {
                    if let Some(connection) = self.begin(stream, peer) {
                        return Poll::Ready(Some(Ok(connection)));
                    }
                }
                Err(error) if concerns_one_peer(&error) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a gRPC connection; raise `ulimit -n` if files have run out");
                    self.retry = Some(Box::pin(tokio::time::sleep(ACCEPT_RETRY_DELAY)));
                }
            }
        }
    }
}

/// Whether the peer has gone before its connection was accepted, rather than this process being at
/// a limit.
pub(crate) fn concerns_one_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// An accepted connection, which fails if nothing comes from it, or its place goes to another.
pub(crate) struct Connection {
    // Before what it marks.
    _mark: Mark,
    stream: Link,
    /// Running until the first byte has come.
    first_byte: Option<Pin<Box<Sleep>>>,
    place: ConnectionPlace,
}

impl Connection {
    fn new(stream: Link, place: ConnectionPlace) -> Self {
        Self {
            _mark: Mark::of(stream.socket()),
            stream,
            first_byte: Some(Box::pin(tokio::time::sleep(FIRST_BYTE_TIMEOUT))),
            place,
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.place.caller().clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if Pin::new(&mut this.place.closing).poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let polled = Pin::new(&mut this.stream).poll_read(context, buffer);
        if polled.is_ready() {
            this.first_byte = None;
        } else if let Some(timeout) = &mut this.first_byte
            && timeout.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use grpcxx_rpc::Places;
    use tokio::io::AsyncReadExt;
    use tokio_stream::StreamExt;

    use super::*;
    use crate::handshakes::Spoken;
    use crate::metrics::Metrics;

    const IDLE_MAX: Duration = Duration::from_secs(60);

    async fn incoming(places_max: usize) -> (Incoming, SocketAddr, Arc<Metrics>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let metrics = Metrics::new();
        let places = Places::new(places_max, 100);
        let handshakes = Handshakes::new(None, Spoken::Http2, 100, metrics.clone());
        let connections = Connections::new(places, Some(IDLE_MAX), metrics.clone());
        (
            Incoming::new(listener, connections, Arc::default(), handshakes),
            address,
            metrics,
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_loses_its_place() {
        let (mut incoming, address, metrics) = incoming(1).await;
        let _silent = std::net::TcpStream::connect(address).unwrap();
        let mut connection = incoming.next().await.unwrap().unwrap();
        assert_eq!(metrics.connections.get(), 1);
        let error = connection.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(connection);
        assert_eq!(metrics.connections.get(), 0);
    }

    #[tokio::test]
    async fn the_connection_that_carries_no_call_gives_way() {
        let (mut incoming, address, metrics) = incoming(2).await;
        let mut peers = Vec::new();
        let mut accepted = Vec::new();
        for _ in 0..2 {
            peers.push(TcpStream::connect(address).await.unwrap());
            accepted.push(incoming.next().await.unwrap().unwrap());
        }
        accepted[0].connect_info().begin_use();
        let _third = TcpStream::connect(address).await.unwrap();
        let third = incoming.next().await.unwrap().unwrap();
        let error = accepted[1].read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
        assert_eq!(metrics.connections_refused.get(), 0);
        // One that finds all others in use is closed at once.
        third.connect_info().begin_use();
        let mut fourth = TcpStream::connect(address).await.unwrap();
        let waiting = tokio::spawn(async move { incoming.next().await.is_some() });
        assert_eq!(fourth.read(&mut [0; 1]).await.unwrap(), 0);
        assert_eq!(metrics.connections_refused.get(), 1);
        drop(accepted);
        let _fifth = TcpStream::connect(address).await.unwrap();
        assert!(waiting.await.unwrap());
    }

    #[tokio::test]
    async fn a_connection_without_calls_is_closed_after_its_time() {
        let (mut incoming, address, _) = incoming(2).await;
        let _peer = TcpStream::connect(address).await.unwrap();
        let mut connection = incoming.next().await.unwrap().unwrap();
        tokio::time::pause();
        tokio::time::advance(IDLE_MAX).await;
        incoming.connections.close_idle();
        let error = connection.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    }
}
