use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Tells systemd, or whoever listens where `NOTIFY_SOCKET` says, that the task can be used.
pub(crate) fn tell_ready(addresses: &str) {
    tell(&format!("READY=1\nSTATUS={addresses}\n"));
}

/// Tells it that the task has begun to stop, and why, and that this may take `grace` however short
/// the time to stop in its unit is.
pub(crate) fn tell_stopping(reason: &str, grace: Duration) {
    let micros = (grace + STOP_MARGIN).as_micros();
    tell(&format!(
        "STOPPING=1\nEXTEND_TIMEOUT_USEC={micros}\nSTATUS=stopping: {reason}\n"
    ));
}

/// What a stop takes beside its grace: links that drain, and threads that end.
const STOP_MARGIN: Duration = Duration::from_secs(10);

/// Without a listener there is nobody to tell. One that cannot be reached stops nothing here, but
/// will give up on the task by itself.
fn tell(state: &str) {
    let Some(listener) = env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
        return;
    };
    if let Err(error) = send(&listener, state) {
        tracing::warn!(
            ?listener, %error, "what NOTIFY_SOCKET names could not be told how the task is"
        );
    }
}

/// As `sd_notify(3)` says: one datagram, to a path or, after an `@`, to an abstract name. It never
/// waits for a listener that does not read.
fn send(listener: &OsStr, state: &str) -> io::Result<()> {
    let address = match listener.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(state.as_bytes(), &address).map(drop)
}
