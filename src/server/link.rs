use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use grpcxx_rpc::Features;
use grpcxx_runtime::{Client, LinkMedium, Peer, PeerState};

/// How the connection to a peer is, once it had the time to move on from TCP; `None` if nobody
/// tells within `timeout`.
pub fn settled_link(client: &Client, peer: &Peer, timeout: Duration) -> Option<PeerState> {
    let end = Instant::now() + timeout.min(MOVE_TIME);
    loop {
        let (tell, told) = channel();
        client.inspect(peer, move |state| {
            // Who asked may have given up.
            let _ = tell.send(state);
        });
        let state = told.recv_timeout(timeout).ok()?;
        let may_move = state
            .features
            .is_some_and(|features| features.intersects(Features::MEDIA));
        let is_settled = state.medium != LinkMedium::Tcp || state.stays.is_some() || !may_move;
        if is_settled || Instant::now() >= end {
            return Some(state);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// How long a connection may take to move on from TCP before it is shown where it is.
const MOVE_TIME: Duration = Duration::from_millis(300);
