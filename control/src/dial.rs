//! Connections to gRPC endpoints that may be TLS.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use grpcxx_runtime::Certificates;
use grpcxx_runtime::cluster::TaskId;
use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tower_service::Service;

use crate::handshakes::Spoken;
use crate::link::Link;

/// Dials endpoints by TLS where the certificates say so, each time with those of that time.
#[derive(Clone)]
pub(crate) struct Dial {
    pub(crate) certificates: Arc<Certificates>,
    /// Which task the endpoint must not deny to be.
    pub(crate) task: Option<TaskId>,
}

impl Service<Uri> for Dial {
    type Response = TokioIo<Link>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Link>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { certificates, task } = self.clone();
        Box::pin(async move {
            let link = dial(&uri, &certificates, task.as_ref()).await?;
            Ok(TokioIo::new(link))
        })
    }
}

async fn dial(uri: &Uri, certificates: &Certificates, task: Option<&TaskId>) -> io::Result<Link> {
    let host = uri.host().unwrap_or_default();
    let host = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or_default())).await?;
    stream.set_nodelay(true)?;
    let address = stream.peer_addr()?;
    let peer = address.ip().to_canonical();
    if !certificates.dials(peer) {
        return Ok(Link::Plain(stream));
    }
    let config = certificates.client_config(&[Spoken::Http2.name()]);
    let config = config.ok_or_else(|| {
        io::Error::other("no authorities are known to check the server by; set GRPCXX_TLS_CA")
    })?;
    let name = ServerName::IpAddress(peer.into());
    let stream = TlsConnector::from(config).connect(name, stream).await?;
    let chain = stream.get_ref().1.peer_certificates();
    if let Some(task) = task {
        Certificates::check_server(task, chain).map_err(io::Error::other)?;
    }
    Ok(Link::Tls(Box::new(stream.into())))
}
