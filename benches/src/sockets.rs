//! Plain sockets that spin: the baseline of all benches over TCP.

use std::hint::spin_loop;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

/// Two ends of one connection over loopback, both spinning.
pub fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = spinning(TcpStream::connect(listener.local_addr()?)?)?;
    let far = spinning(listener.accept()?.0)?;
    Ok((near, far))
}

/// Lets a socket send at once and never wait.
pub fn spinning(socket: TcpStream) -> io::Result<TcpStream> {
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Reads what is there, which may be nothing; `None` at the end.
pub fn read_some(socket: &mut TcpStream, buffer: &mut [u8]) -> Option<usize> {
    match socket.read(buffer) {
        Ok(0) => None,
        Ok(bytes) => Some(bytes),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Some(0),
        Err(_) => None,
    }
}

/// Fills `buffer`; says whether the peer sent enough before it ended.
pub fn read_exact(socket: &mut TcpStream, mut buffer: &mut [u8]) -> bool {
    while !buffer.is_empty() {
        let wanted = buffer.len().min(READ_BYTES_MAX);
        match read_some(socket, &mut buffer[..wanted]) {
            Some(0) => spin_loop(),
            Some(bytes) => buffer = &mut buffer[bytes..],
            None => return false,
        }
    }
    true
}

/// Writes all of `bytes`, unless the peer has gone.
pub fn write_all(socket: &mut TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => spin_loop(),
            Err(_) => return,
        }
    }
}

/// Answers each request of `request_bytes` bytes with `answer_bytes` bytes, until the peer ends.
pub fn answer(mut socket: TcpStream, request_bytes: usize, answer_bytes: usize) {
    // Written once, so that no first use of a page is measured.
    let mut request = vec![1; request_bytes];
    let answer = vec![3; answer_bytes];
    while read_exact(&mut socket, &mut request) {
        write_all(&mut socket, &answer);
    }
}

/// Sends back what comes on each socket, at most `buffer_bytes` bytes at once, until a peer ends.
pub fn echo(mut sockets: Vec<TcpStream>, buffer_bytes: usize) {
    let mut buffer = vec![0; buffer_bytes];
    loop {
        for socket in &mut sockets {
            match read_some(socket, &mut buffer) {
                Some(0) => {}
                Some(bytes) => write_all(socket, &buffer[..bytes]),
                None => return,
            }
        }
    }
}

/// Longest single read.
const READ_BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_and_bytes_come_back() {
        let (mut near, far) = pair().unwrap();
        let server = std::thread::spawn(move || answer(far, 2 << 20, 3));
        let mut answered = [0; 3];
        for _ in 0..2 {
            write_all(&mut near, &vec![1; 2 << 20]);
            assert!(read_exact(&mut near, &mut answered));
        }
        drop(near);
        server.join().unwrap();

        let (mut near, far) = pair().unwrap();
        let server = std::thread::spawn(move || echo(vec![far], 16));
        write_all(&mut near, b"what comes goes back");
        let mut echoed = [0; 20];
        assert!(read_exact(&mut near, &mut echoed));
        assert_eq!(&echoed, b"what comes goes back");
        drop(near);
        server.join().unwrap();
    }
}
