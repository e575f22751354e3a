//! Two sessions that a handshake in memory has made, without links.

use grpcxx_transport::Frame;

use super::*;
use crate::handshake::{Handshake, HandshakeStep};
use crate::record::TAG_BYTES;
use crate::test_credentials::Authority;

/// Two ends of a connection; keys are replaced after so many records.
fn pair(records_per_key: u64) -> [Session; 2] {
    let authority = Authority::new();
    let [client, server] =
        [("worker", 3), ("ps", 0)].map(|(job, index)| authority.task("blue", job, index));
    let mut client = Handshake::client(&client, [127, 0, 0, 1].into()).unwrap();
    let mut server = Handshake::server(&server).unwrap();
    let mut done = [false; 2];
    while done != [true; 2] {
        let mut said = Vec::new();
        done[0] |= client.step(&mut said).unwrap() == HandshakeStep::Done;
        server.take(&said).unwrap();
        said.clear();
        done[1] |= server.step(&mut said).unwrap() == HandshakeStep::Done;
        client.take(&said).unwrap();
    }
    [client, server].map(|end| {
        Session::new(end.finish().unwrap(), records_per_key)
            .unwrap()
            .0
    })
}

fn outbound(frames: &[&[u8]]) -> Outbound {
    let mut outbound = Outbound::default();
    for bytes in frames {
        let mut frame = Box::new(Frame::new());
        frame.bytes_mut().extend_from_slice(bytes);
        outbound.push(frame);
    }
    outbound
}

fn sealed(session: &mut Session, frames: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    let count = session.seal(&mut outbound(frames), usize::MAX, &mut out);
    assert_eq!(count, Ok(frames.len() as u64));
    out
}

/// All that the records in `bytes` hold, or the fault.
fn opened(session: &mut Session, mut bytes: &mut [u8]) -> Result<(Vec<u8>, bool), Fault> {
    let (mut text, mut is_closed) = (Vec::new(), false);
    while let Some(header) = bytes.first_chunk() {
        let len = crate::record::record_bytes(header)?;
        let (record, rest) = std::mem::take(&mut bytes).split_at_mut(len);
        match session.open(record)? {
            Opened::Data(data) => text.extend_from_slice(data),
            Opened::Nothing => {}
            Opened::Closed => is_closed = true,
        }
        bytes = rest;
    }
    Ok((text, is_closed))
}

fn sealed_text(session: &mut Session, content: Content, text: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    session.seal_text(text, content, &mut out);
    out
}

#[test]
fn each_end_knows_the_task_of_the_other() {
    let [client, server] = pair(1 << 23);
    assert_eq!(client.name.unwrap().to_string(), "grpcxx://blue/ps/0");
    assert_eq!(server.name.unwrap().to_string(), "grpcxx://blue/worker/3");
}

#[test]
fn frames_share_records_and_long_ones_take_several() {
    let [mut client, mut server] = pair(1 << 23);
    let mut records = sealed(&mut client, &[b"a", b"", b"bc"]);
    assert_eq!(records.len(), HEADER_BYTES + 3 + 1 + TAG_BYTES);
    assert_eq!(
        opened(&mut server, &mut records),
        Ok((b"abc".to_vec(), false))
    );
    let long = vec![9; 3 * TEXT_BYTES_MAX + 5];
    let mut records = sealed(&mut server, &[&long]);
    assert_eq!(opened(&mut client, &mut records), Ok((long, false)));
}

#[test]
fn keys_are_replaced_on_both_sides_and_data_goes_on() {
    let [mut client, mut server] = pair(4);
    for round in 0..50u8 {
        let mut records = sealed(&mut client, &[&[round; 20_000]]);
        assert_eq!(
            opened(&mut server, &mut records),
            Ok((vec![round; 20_000], false))
        );
        let mut records = sealed(&mut server, &[&[round]]);
        assert_eq!(opened(&mut client, &mut records), Ok((vec![round], false)));
    }
    assert!(client.replaced_keys >= 30, "{}", client.replaced_keys);
    assert_eq!(client.replaced_keys, server.replaced_keys);
}

#[test]
fn a_key_that_the_peer_asks_for_is_replaced_once() {
    let [mut client, mut server] = pair(1 << 23);
    for _ in 0..3 {
        let mut asked = sealed_text(&mut client, Content::Handshake, &[KEY_UPDATE, 0, 0, 1, 1]);
        client.sealing = RecordKey::new(client.source.next_to_seal().unwrap()).unwrap();
        assert_eq!(opened(&mut server, &mut asked), Ok((Vec::new(), false)));
    }
    assert!(server.owes_key());
    let mut records = sealed(&mut server, &[b"x"]);
    assert!(!server.owes_key());
    assert_eq!(
        opened(&mut client, &mut records),
        Ok((b"x".to_vec(), false))
    );
    let mut records = sealed(&mut client, &[b"y"]);
    assert_eq!(
        opened(&mut server, &mut records),
        Ok((b"y".to_vec(), false))
    );
    assert_eq!(client.replaced_keys, 1, "one answer for three questions");
}

#[test]
fn messages_that_have_no_business_after_the_handshake_end_it() {
    let cases: [(&[u8], u8); 7] = [
        (&[], 0),
        (&[1, 0, 0, 0], 1),
        (&[13, 0, 0, 1, 0], 13),
        (&[KEY_UPDATE, 0, 0, 1], KEY_UPDATE),
        (&[KEY_UPDATE, 0, 0, 1, 2], KEY_UPDATE),
        (&[KEY_UPDATE, 0, 0, 1, 0, 4, 0, 0, 0], KEY_UPDATE),
        (&[NEW_SESSION_TICKET, 1, 0, 0], NEW_SESSION_TICKET),
    ];
    for (message, kind) in cases {
        let [mut client, mut server] = pair(1 << 23);
        let mut record = sealed_text(&mut client, Content::Handshake, message);
        let fault = opened(&mut server, &mut record).unwrap_err();
        assert_eq!(fault, Fault::Message { kind }, "{message:?}");
        assert!(fault.alert().is_some());
    }
}

#[test]
fn tickets_are_ignored() {
    let [mut client, mut server] = pair(1 << 23);
    let two = [
        NEW_SESSION_TICKET,
        0,
        0,
        2,
        9,
        9,
        NEW_SESSION_TICKET,
        0,
        0,
        0,
    ];
    let mut record = sealed_text(&mut server, Content::Handshake, &two);
    assert_eq!(opened(&mut client, &mut record), Ok((Vec::new(), false)));
}

#[test]
fn records_without_data_are_taken_up_to_a_limit() {
    let [mut client, mut server] = pair(1 << 23);
    for round in 0..3 {
        for _ in 0..IDLE_RECORDS_MAX {
            let mut empty = sealed_text(&mut client, Content::Data, b"");
            assert!(opened(&mut server, &mut empty).is_ok(), "round {round}");
        }
        let mut data = sealed_text(&mut client, Content::Data, b"data");
        assert!(opened(&mut server, &mut data).is_ok());
    }
    let flood: Vec<u8> = (0..=IDLE_RECORDS_MAX)
        .flat_map(|_| sealed_text(&mut client, Content::Data, b""))
        .collect();
    assert_eq!(opened(&mut server, &mut flood.clone()), Err(Fault::Idle));
}

#[test]
fn alerts_end_it_by_their_meaning() {
    let [mut client, mut server] = pair(1 << 23);
    let mut record = sealed_text(&mut client, Content::Alert, &[1, USER_CANCELED]);
    assert_eq!(opened(&mut server, &mut record), Ok((Vec::new(), false)));
    let mut record = sealed_text(&mut client, Content::Alert, &[2, 48]);
    let fault = opened(&mut server, &mut record).unwrap_err();
    assert_eq!(
        (fault.clone(), fault.alert()),
        (Fault::Alert { code: 48 }, None)
    );
    let mut record = sealed_text(&mut client, Content::Alert, &[2]);
    let fault = opened(&mut server, &mut record).unwrap_err();
    assert_eq!(fault, Fault::AlertLength { bytes: 1 });
    let mut said = Vec::new();
    client.seal_alert(CLOSE_NOTIFY, &mut said);
    assert_eq!(opened(&mut server, &mut said), Ok((Vec::new(), true)));
}

#[test]
fn records_that_are_swapped_between_directions_do_not_open() {
    let [mut client, _] = pair(1 << 23);
    let mut own = sealed(&mut client, &[b"echo"]);
    let fault = opened(&mut client, &mut own).unwrap_err();
    assert!(matches!(fault, Fault::Forged { .. }), "{fault}");
}
