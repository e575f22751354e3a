//! What `grpcxx inspect` does where something else answers at the gRPC port of a task.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::thread;

use super::ports::held_address;
use super::{grpcxx, options, start, text};

/// An address where each connection is answered with `answer`, whatever it says, and closed.
fn stranger(answer: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for mut connection in listener.incoming().flatten() {
            // The caller may have closed it before.
            let _ = connection.write_all(answer);
            let _ = connection.read(&mut [0; 1024]);
        }
    });
    address
}

#[test]
fn a_task_whose_grpc_port_speaks_no_grpc_is_asked_over_star() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = start(options(1, 0, &[]));
    let star = cluster.star_address("ps:0").unwrap();
    let ask = |grpc: SocketAddr, star: &str| {
        std::fs::write(folder.path().join("map"), format!("{grpc}={star}\n")).unwrap();
        let spec = format!("ps|{grpc}");
        let place = ["--cluster-spec", &spec, "--endpoint-map", "map"];
        grpcxx(folder.path(), &[&["inspect", "ps:0"], &place[..]].concat())
    };
    let answers: [&[u8]; 4] = [
        b"",
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        b"no protocol that anybody knows, and longer than a frame's head\n",
        &[0; 64],
    ];
    for answer in answers {
        let told = ask(stranger(answer), star);
        let (out, err) = (text(&told.stdout), text(&told.stderr));
        assert_eq!(told.status.code(), Some(0), "{answer:?}: {err}");
        assert!(out.contains("receives wait"), "{out}");
    }
    let nobody = held_address().to_string();
    let failed = ask(stranger(b""), &nobody);
    let err = text(&failed.stderr);
    assert_eq!(failed.status.code(), Some(69), "{err}");
    assert!(err.contains(&nobody), "{err}");
}
