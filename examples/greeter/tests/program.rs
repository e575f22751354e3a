//! The program: what it serves, over star and over gRPC.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use grpcxx_greeter::helloworld::{HelloReply, HelloRequest};
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use crate::ports::held_address;

const PROGRAM: &str = env!("CARGO_BIN_EXE_grpcxx-greeter");

/// The server, which ends with this.
struct Served(Child);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Starts the server, and waits for its first line.
fn served(words: &[&str]) -> (Served, String) {
    let mut command = Command::new(PROGRAM);
    command.args(words).stdout(Stdio::piped());
    let mut served = Served(command.spawn().unwrap());
    let mut line = String::new();
    let output = served.0.stdout.take().unwrap();
    BufReader::new(output).read_line(&mut line).unwrap();
    (served, line)
}

/// What the program prints that calls a server.
fn called(star: SocketAddr, name: &str) -> String {
    let mut command = Command::new(PROGRAM);
    let output = command.args(["call", &star.to_string(), name]).output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

#[test]
fn it_greets_over_star() {
    let star = held_address();
    let (_served, line) = served(&["serve", &star.to_string()]);
    assert_eq!(line, format!("listening on {star}\n"));
    assert_eq!(called(star, "you"), "Hello you!\n");
}

#[tokio::test]
async fn it_greets_clients_of_grpc_too() {
    let (star, grpc) = (held_address(), held_address());
    let words = ["serve", &star.to_string(), "--grpc", &grpc.to_string()];
    let (_served, line) = served(&words);
    assert_eq!(line, format!("listening on {star}, for gRPC on {grpc}\n"));
    assert_eq!(called(star, "you"), "Hello you!\n");
    let channel = Channel::from_shared(format!("http://{grpc}")).unwrap();
    let mut client = Grpc::new(channel.connect().await.unwrap());
    client.ready().await.unwrap();
    let request = tonic::Request::new(HelloRequest {
        name: "gRPC".into(),
    });
    let path = "/helloworld.Greeter/SayHello".parse().unwrap();
    let codec = ProstCodec::<HelloRequest, HelloReply>::default();
    let reply = client.unary(request, path, codec).await.unwrap();
    assert_eq!(reply.into_inner().message, "Hello gRPC!");
}

#[test]
fn words_that_it_does_not_know_are_named() {
    let output = Command::new(PROGRAM).arg("sing").output().unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("serve ADDRESS [--grpc HOST:PORT]"), "{text}");
}
