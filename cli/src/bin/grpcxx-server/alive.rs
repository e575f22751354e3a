//! Asks the task of another process whether it is alive, for health checks within its container.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use crate::arguments::Arguments;
use crate::terminal::{Exit, Failure, Outcome, read_config};

/// A failure if the task whose metrics these arguments and variables lead to says that it is not
/// alive, or says nothing.
///
/// Nobody listens there while a task loads, or where it serves no metrics, and who may not ask
/// learns nothing: that says nothing against the task, whose container ends with it.
pub(crate) fn check(arguments: &Arguments) -> Outcome {
    let (config, _warnings) = read_config()?;
    let told = arguments.metrics_addr.or(config.metrics_address);
    let address = told.unwrap_or(DEFAULT_ADDRESS);
    match ask(address) {
        Ok(answer) if answer.starts_with(UNAVAILABLE) => {
            let reason = answer.lines().last().unwrap_or_default();
            Err(Failure::new(
                Exit::Unavailable,
                format!("the task at {address} says: {reason}"),
            ))
        }
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
            ) =>
        {
            let text = format!("the task at {address} says nothing within {TIMEOUT:?}");
            Err(Failure::new(Exit::Unavailable, text))
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

fn ask(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer)?;
    Ok(answer)
}

/// Where the command of the container serves metrics.
const DEFAULT_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9100);
/// How a page answers for a task that is not alive.
const UNAVAILABLE: &str = "HTTP/1.1 503 ";
/// Less than health checks wait.
const TIMEOUT: Duration = Duration::from_secs(2);
const ANSWER_BYTES_MAX: u64 = 64 << 10;
