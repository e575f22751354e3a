use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use prometheus::IntGauge;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::transport::server::Connected;

use crate::limits::{ACCEPT_RETRY_DELAY, FIRST_BYTE_TIMEOUT};
use crate::metrics::Metrics;

/// Connections as they arrive, as many as there may be.
pub(crate) struct Incoming {
    listener: TcpListener,
    connections_max: usize,
    places: Arc<Semaphore>,
    metrics: Arc<Metrics>,
    /// Set while the process lacks what a new connection needs.
    retry: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    pub(crate) fn new(
        listener: TcpListener,
        connections_max: usize,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            listener,
            connections_max,
            places: Arc::new(Semaphore::new(connections_max)),
            metrics,
            retry: None,
        }
    }

    /// The connection if there is a place for it.
    fn admit(&self, stream: TcpStream, peer: SocketAddr) -> Option<Connection> {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            self.metrics.connections_refused.inc();
            tracing::warn!(
                %peer,
                connections_max = self.connections_max,
                "a gRPC connection was closed at once: as many as are allowed are open"
            );
            return None;
        };
        // A socket that takes no options is about to fail anyway.
        let _ = stream.set_nodelay(true);
        self.metrics.connections.inc();
        Some(Connection {
            stream,
            first_byte: Some(Box::pin(tokio::time::sleep(FIRST_BYTE_TIMEOUT))),
            open: self.metrics.connections.clone(),
            _place: place,
        })
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(retry) = &mut self.retry {
                ready!(retry.as_mut().poll(context));
                self.retry = None;
            }
            match ready!(self.listener.poll_accept(context)) {
                Ok((stream, peer)) => {
                    if let Some(connection) = self.admit(stream, peer) {
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

/// Whether the peer has gone before its connection was accepted, rather than this process being at a limit.
pub(crate) fn concerns_one_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

/// An accepted connection, which fails if nothing comes from it.
pub(crate) struct Connection {
    stream: TcpStream,
    /// Running until the first byte has come.
    first_byte: Option<Pin<Box<Sleep>>>,
    open: IntGauge,
    _place: OwnedSemaphorePermit,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.dec();
    }
}

impl Connected for Connection {
    type ConnectInfo = Option<SocketAddr>;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.peer_addr().ok()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
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
    use tokio::io::AsyncReadExt;
    use tokio_stream::StreamExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_loses_its_place() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let metrics = Metrics::new();
        let mut incoming = Incoming::new(listener, 1, metrics.clone());
        let _silent = std::net::TcpStream::connect(address).unwrap();
        let mut connection = incoming.next().await.unwrap().unwrap();
        assert_eq!(metrics.connections.get(), 1);
        let error = connection.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(connection);
        assert_eq!(metrics.connections.get(), 0);
    }

    #[tokio::test]
    async fn connections_beyond_the_limit_are_closed_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let metrics = Metrics::new();
        let mut incoming = Incoming::new(listener, 2, metrics.clone());
        let mut peers = Vec::new();
        for _ in 0..3 {
            peers.push(TcpStream::connect(address).await.unwrap());
        }
        let first = incoming.next().await.unwrap().unwrap();
        let _second = incoming.next().await.unwrap().unwrap();
        let waiting = tokio::spawn(async move { incoming.next().await.is_some() });
        let mut closed = [0; 1];
        assert_eq!(peers[2].read(&mut closed).await.unwrap(), 0);
        assert_eq!(metrics.connections_refused.get(), 1);
        drop(first);
        let _fourth = TcpStream::connect(address).await.unwrap();
        assert!(waiting.await.unwrap());
    }
}
