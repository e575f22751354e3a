//! Stopping the endpoint while clients use it.

use std::time::{Duration, Instant};

use grpcxx_control::{ClientError, ClientOptions, ControlClient, Health};
use grpcxx_rpc::Code;

use crate::support::{Fake, bytes, channel, connect, start};

#[tokio::test]
async fn a_stop_lets_calls_under_way_end() {
    let fake = Fake::new();
    fake.put(1, "gate", bytes(1 << 20));
    let control = start(&fake);
    let client = connect(&control).await;
    let waiting = tokio::spawn(async move { client.recv_tensor(1, "gate").await });
    fake.until_waiting(1).await;
    let address = control.local_addr();
    let stopping = tokio::task::spawn_blocking(move || control.shutdown(Duration::from_secs(20)));
    // The port is closed while the call goes on.
    while tokio::net::TcpStream::connect(address).await.is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(fake.waiting.load(std::sync::atomic::Ordering::SeqCst), 1);
    fake.gate.send_replace(true);
    assert_eq!(waiting.await.unwrap().unwrap(), bytes(1 << 20));
    assert_eq!(stopping.await.unwrap().unanswered_calls, 0);
}

#[tokio::test]
async fn a_stop_answers_calls_that_do_not_end_and_is_bounded() {
    let fake = Fake::new();
    let control = start(&fake);
    let client = connect(&control).await;
    let waiting: Vec<_> = (0..10)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { client.recv_tensor(1, "never").await })
        })
        .collect();
    fake.until_waiting(10).await;
    let begun = Instant::now();
    let stopped = tokio::task::spawn_blocking(move || control.shutdown(Duration::from_millis(100)));
    for call in waiting {
        let ClientError::Call { status, .. } = call.await.unwrap().unwrap_err() else {
            panic!("another error than that of the call");
        };
        assert_eq!(status.code, Code::Unavailable);
        assert!(status.message.contains("stopping"), "{status}");
    }
    assert_eq!(stopped.await.unwrap().unanswered_calls, 10);
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    fake.until_waiting(0).await;
}

#[tokio::test]
async fn watchers_learn_of_a_stop_and_do_not_delay_it() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;

    let fake = Fake::new();
    let control = start(&fake);
    let mut health = HealthClient::new(channel(&control).await);
    let service = "tensorflow.WorkerService".to_owned();
    let mut watch = health
        .watch(HealthCheckRequest { service })
        .await
        .unwrap()
        .into_inner();
    let first = watch.message().await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
    let begun = Instant::now();
    let stopped = tokio::task::spawn_blocking(move || control.shutdown(Duration::from_secs(60)));
    let second = watch.message().await.unwrap().unwrap();
    assert_eq!(second.status(), ServingStatus::NotServing);
    stopped.await.unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(30),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn an_alarm_shows_in_the_health_while_calls_are_answered() {
    let control = start(&Fake::new());
    let client = connect(&control).await;
    assert_eq!(client.health().await.unwrap(), Health::Serving);
    let alarm = control.alarm();
    std::thread::spawn(move || alarm.raise());
    let begun = Instant::now();
    while client.health().await.unwrap() != Health::NotServing {
        assert!(begun.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    client.get_status().await.unwrap();
    tokio::task::spawn_blocking(move || control.shutdown(Duration::from_secs(60)))
        .await
        .unwrap();
}

#[tokio::test]
async fn dropping_the_endpoint_closes_its_port() {
    let control = start(&Fake::new());
    let address = control.local_addr();
    tokio::task::spawn_blocking(move || drop(control))
        .await
        .unwrap();
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
    let client = ControlClient::connect(&address.to_string(), ClientOptions::default()).await;
    let text = client.unwrap_err().to_string();
    assert!(
        text.contains(&address.to_string()) && text.contains("check that"),
        "{text}"
    );
}
