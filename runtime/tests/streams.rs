//! One suite of streams over every kind of link: the TCP drivers, shared memory, TLS, and RDMA
//! where there is a device. The simulation of clusters has them over simulated RDMA.

use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_channel::mpsc::unbounded;
use futures_util::{StreamExt, stream};
use grpcxx_rpc::{Code, Request as Fused, Text};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::service::{
    Methods, Place, Request, Response, ServiceClient, Streaming, TypedService,
};
use grpcxx_runtime::{Engine, EngineOptions, LinkMedium, Rdma, Remote};
use grpcxx_tcp::{DriverRequest, TcpOptions, TcpTransport};
use prost::Message;

use crate::authority::Authority;

#[derive(Clone, PartialEq, Message)]
struct Numbered {
    #[prost(uint64, tag = "1")]
    number: u64,
    #[prost(bytes = "bytes", tag = "2")]
    data: Bytes,
}

/// Methods of all kinds.
struct Numbers(Place);

impl TypedService for Numbers {
    const NAME: &'static str = "links.Numbers";

    fn into_methods(self) -> Methods {
        Methods::new(Self::NAME, &[], self.0)
            .unary("One", |request: Request<Numbered>| async move {
                Ok(Response::new(request.into_inner()))
            })
            .server_stream("Tell", |request: Request<Numbered>| async move {
                let answers = (0..request.get_ref().number).map(|number| Ok(message(number)));
                Ok(Response::new(stream::iter(answers)))
            })
            .client_stream(
                "Listen",
                |request: Request<Streaming<Numbered>>| async move {
                    let mut messages = request.into_inner();
                    let mut number = 0;
                    while let Some(got) = messages.message().await? {
                        assert!(got == message(number), "message {number}");
                        number += 1;
                    }
                    Ok(Response::new(Numbered {
                        number,
                        ..Numbered::default()
                    }))
                },
            )
            .two_streams("Talk", |request: Request<Streaming<Numbered>>| async move {
                Ok(Response::new(request.into_inner()))
            })
    }
}

/// Two engines with a connection of one kind between them.
struct Linked {
    name: &'static str,
    server: Engine,
    client: Engine,
    remote: Remote,
}

impl Linked {
    fn new(name: &'static str, medium: LinkMedium, [server, client]: [Engine; 2]) -> Self {
        server.add_service(Numbers(Place::Shard));
        let remote = client.connect(&server.local_addr().unwrap().to_string());
        let remote = remote.unwrap();
        let linked = Self {
            name,
            server,
            client,
            remote,
        };
        let until = Instant::now() + PATIENCE;
        while linked.one(7) != 7 || linked.medium() != medium {
            assert!(Instant::now() < until, "{name} does not move");
        }
        linked
    }

    /// What carries the connection now.
    fn medium(&self) -> LinkMedium {
        let (tell, told) = channel();
        let client = self.client.client();
        client.inspect(self.remote.peer(), move |state| {
            tell.send(state.medium).unwrap();
        });
        told.recv_timeout(PATIENCE).unwrap()
    }

    fn calls(&self) -> ServiceClient {
        ServiceClient::new(self.remote.clone().with_timeout(PATIENCE))
    }

    fn one(&self, number: u64) -> u64 {
        let request = Request::new(message(number));
        let call = self
            .calls()
            .unary::<_, Numbered>("/links.Numbers/One", request);
        call.wait().unwrap().get_ref().number
    }

    fn tell(&self, number: u64) -> Streaming<Numbered> {
        let request = Request::new(Numbered {
            number,
            ..Numbered::default()
        });
        let call = self.calls().server_stream("/links.Numbers/Tell", request);
        call.wait().unwrap().into_inner()
    }

    fn in_flight(&self) -> u64 {
        let reports = self.server.method_reports();
        reports.iter().map(|report| report.in_flight).sum()
    }

    fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < until, "{}: {what}", self.name);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Lengths on both sides of all that is copied, shared and cut.
fn message(number: u64) -> Numbered {
    let lengths = [0, 1, 60, 1000, 4090, 4100, 70_000, 1 << 20];
    let len = match number % 50 {
        0 => lengths[(number / 50 % 8) as usize],
        other => other as usize,
    };
    Numbered {
        number,
        data: vec![number as u8; len].into(),
    }
}

fn options(job: &str) -> EngineOptions {
    EngineOptions::default().with(|options| {
        options.task = TaskId::new(job, 0);
        options.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        options.shm = None;
        options.rdma = None;
    })
}

fn start(change: impl Fn(&mut EngineOptions)) -> [Engine; 2] {
    ["ps", "worker"].map(|job| Engine::start(options(job).with(&change)).unwrap())
}

/// Connections of each kind that works here.
#[expect(clippy::print_stderr, reason = "what is left out must be seen")]
fn links() -> Vec<Linked> {
    let with = |driver| start(|options| options.tcp.driver = driver);
    let mut links = vec![Linked::new(
        "epoll",
        LinkMedium::Tcp,
        with(DriverRequest::Epoll),
    )];
    let ring = TcpOptions::default().with(|options| options.driver = DriverRequest::IoUring);
    match TcpTransport::open(ring) {
        Ok(_) => {
            let engines = with(DriverRequest::IoUring);
            links.push(Linked::new("io_uring", LinkMedium::Tcp, engines));
        }
        Err(error) => eprintln!("SKIPPED the io_uring driver: {error}"),
    }
    let engines = start(|options| options.shm = EngineOptions::default().shm);
    links.push(Linked::new("shm", LinkMedium::SharedMemory, engines));
    let authority = Authority::new();
    let variables = [("GRPCXX_TLS", "require"), ("GRPCXX_SHM", "off")];
    let engines = ["ps", "worker"].map(|job| authority.start(job, &variables));
    links.push(Linked::new("tls", LinkMedium::Tcp, engines));
    let engines = start(|options| options.rdma = EngineOptions::default().rdma);
    match &engines[0].start_report().rdma {
        Rdma::Off { why } => eprintln!("SKIPPED, RDMA was not tested: {why}"),
        _ => links.push(Linked::new("rdma", LinkMedium::Rdma, engines)),
    }
    links
}

#[test]
fn streams_keep_their_promises_over_every_link() {
    for linked in links() {
        for place in [Place::Shard, Place::ComputePool] {
            linked.server.add_service(Numbers(place));
            every_message_crosses_once_and_in_order(&linked);
            a_reader_that_never_reads_holds_up_nobody(&linked);
            a_deadline_ends_a_stream(&linked);
        }
        a_stream_hears_once_that_its_server_has_gone(linked);
    }
}

fn every_message_crosses_once_and_in_order(linked: &Linked) {
    let name = linked.name;
    let mut told = linked.tell(MESSAGES);
    for number in 0..MESSAGES {
        let got = told.wait_message().unwrap();
        assert!(got == Some(message(number)), "{name}: message {number}");
    }
    assert_eq!(told.wait_message().unwrap(), None, "{name}");

    let messages = || Request::new(stream::iter((0..MESSAGES).map(message)));
    let calls = linked.calls();
    let listened = calls.client_stream::<_, Numbered, _>("/links.Numbers/Listen", messages());
    let count = listened.wait().unwrap().get_ref().number;
    assert_eq!(count, MESSAGES, "{name}");

    let talk = calls.two_streams::<_, Numbered, _>("/links.Numbers/Talk", messages());
    let talk = talk.wait().unwrap().into_inner();
    let answers: Vec<Numbered> =
        futures_executor::block_on(talk.map(|answer| answer.unwrap()).collect());
    assert!(
        answers.into_iter().eq((0..MESSAGES).map(message)),
        "{name}: the answers"
    );
}

fn a_reader_that_never_reads_holds_up_nobody(linked: &Linked) {
    let unread = linked.tell(u64::MAX);
    for number in 0..100 {
        assert_eq!(linked.one(number), number, "{}", linked.name);
    }
    drop(unread);
    linked.until("the method ends", |linked| linked.in_flight() == 0);
}

fn a_deadline_ends_a_stream(linked: &Linked) {
    let mut request = Request::new(stream::pending::<Numbered>());
    request.set_timeout(Duration::from_millis(30));
    let call = linked
        .calls()
        .client_stream::<_, Numbered, _>("/links.Numbers/Listen", request);
    let status = call.wait().unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded, "{}", linked.name);
    linked.until("the method ends", |linked| linked.in_flight() == 0);
}

fn a_stream_hears_once_that_its_server_has_gone(linked: Linked) {
    let Linked {
        name,
        server,
        remote,
        client: _client,
    } = linked;
    let calls = ServiceClient::new(remote);
    let request = Request::new(stream::iter([message(0)]).chain(stream::pending()));
    let talk = calls.two_streams::<_, Numbered, _>("/links.Numbers/Talk", request);
    let mut talk = talk.wait().unwrap().into_inner();
    assert_eq!(talk.wait_message().unwrap(), Some(message(0)), "{name}");
    drop(server);
    let status = talk.wait_message().unwrap_err();
    assert_eq!(status.code, Code::Unavailable, "{name}: {status}");
    assert_eq!(talk.wait_message().unwrap(), None, "{name}: it ends once");
}

/// A shard takes so many keys of fused receives in a turn, and comes to its other connections in
/// the next one.
#[test]
fn streams_are_heard_beside_connections_that_receive_many_tensors() {
    let [server, greedy] = start(|options| options.shards = 1);
    let talker = Engine::start(options("talker")).unwrap();
    let linked = Linked::new("beside", LinkMedium::Tcp, [server, talker]);
    let client = greedy.client();
    let address = linked.server.local_addr().unwrap().to_string();
    let peer = client.peer(&address).unwrap();
    let receive = || {
        let keys = (0..64).map(|index| Text::from(format!("none_{index}")));
        let keys = keys.collect();
        client.call(&peer, Fused::FuseRecvTensor { step_id: 1, keys }, None)
    };
    let (say, said) = unbounded();
    say.unbounded_send(message(0)).unwrap();
    let calls = linked.calls();
    let talk = calls.two_streams::<_, Numbered, _>("/links.Numbers/Talk", Request::new(said));
    let mut talk = talk.wait().unwrap().into_inner();
    for number in 0..300 {
        assert_eq!(talk.wait_message().unwrap(), Some(message(number)));
        let receives: Vec<_> = (0..16).map(|_| receive()).collect();
        say.unbounded_send(message(number + 1)).unwrap();
        for receive in receives {
            assert_eq!(receive.wait().unwrap_err().code, Code::InvalidArgument);
        }
    }
}

const MESSAGES: u64 = 1000;
const PATIENCE: Duration = Duration::from_secs(20);
