//! Each host turns each TCP driver, awake and asleep.

use std::time::Duration;

use grpcxx_runtime::host::{HostChoice, HostKind, HostSetting};
use grpcxx_runtime::idle::IdlePolicy;
use grpcxx_tcp::{DriverRequest, TcpOptions, TcpTransport};

use crate::echo::{Setup, run};

#[test]
fn shards_echo_over_tcp() {
    for driver in drivers() {
        for kind in hosts() {
            for idle in [
                IdlePolicy::Spin,
                IdlePolicy::SpinThenPark(Duration::from_micros(30)),
                IdlePolicy::Park,
            ] {
                for has_futures in [false, true] {
                    let times = run(Setup {
                        driver,
                        kind,
                        idle,
                        has_futures,
                        cpus: [None, None],
                        round_trips: ROUND_TRIPS,
                    });
                    assert_eq!(times.len(), ROUND_TRIPS);
                }
            }
        }
    }
}

#[expect(clippy::print_stderr, reason = "what is left out must be seen")]
fn hosts() -> Vec<HostKind> {
    let choice = HostChoice::choose(HostSetting::Auto).unwrap();
    if choice.kind == HostKind::Native {
        eprintln!("SKIPPED the glommio host: {choice}");
        return vec![HostKind::Native];
    }
    vec![HostKind::Native, HostKind::Glommio]
}

#[expect(clippy::print_stderr, reason = "what is left out must be seen")]
fn drivers() -> Vec<DriverRequest> {
    let options = TcpOptions::default().with(|options| options.driver = DriverRequest::IoUring);
    match TcpTransport::open(options) {
        Ok(_) => vec![DriverRequest::IoUring, DriverRequest::Epoll],
        Err(error) => {
            eprintln!("SKIPPED the io_uring driver: {error}");
            vec![DriverRequest::Epoll]
        }
    }
}

const ROUND_TRIPS: usize = 100;
