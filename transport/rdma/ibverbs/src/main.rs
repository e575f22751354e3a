//! The other end of one link of grpcxx, written with the package `ibverbs`: it shares no code with
//! ours.
//!
//! It reads the set-up data of a link as a line of hexadecimal digits, answers with its own, and
//! then sends each byte of the stream back. After the byte `LAST` it offers `OFFER_BYTES` bytes for
//! the link to read, waits until they were read, and ends its own stream. `docs/rdma.md` describes
//! the messages.

mod link;
mod setup;

use std::error::Error;
use std::io::{BufRead, Write};

use ibverbs::ibv_qp_type::IBV_QPT_RC;

use link::{Memory, Peer};
use setup::SetUp;

fn main() -> Result<(), Box<dyn Error>> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let theirs = SetUp::from_line(&line)?;

    let devices = ibverbs::devices()?;
    let device = devices.get(0).ok_or("there is no RDMA device")?;
    let context = device.open()?;
    let same_gid = |entry: &&ibverbs::GidEntry| setup::bytes_of(entry.gid) == theirs.gid;
    let gid = (context.gid_table().iter().find(same_gid))
        .ok_or("the link is not on the first device of this machine")?;
    let domain = context.alloc_pd()?;
    let completions = context.create_cq(COMPLETIONS, 0)?;
    let mut memory = Memory::new(&domain)?;
    let prepared = domain
        .create_qp(&completions, &completions, IBV_QPT_RC)
        .set_gid_index(gid.gid_index)
        .allow_remote_rw()
        .set_max_send_wr(link::SENDS as u32)
        .set_max_recv_wr(link::RECEIVES as u32)
        .set_max_dest_rd_atomic(setup::READS)
        .set_path_mtu(u32::from(theirs.mtu))
        .set_rq_psn(theirs.sequence)
        .set_timeout(TIMEOUT)
        .build()?;
    let ours = SetUp::of(prepared.endpoint(), theirs.mtu);
    let mut queue = prepared.handshake(theirs.endpoint())?;
    link::post_receives(&mut queue, &mut memory)?;

    let mut stdout = std::io::stdout();
    writeln!(stdout, "{}", ours.to_line())?;
    stdout.flush()?;
    let mut peer = Peer::new(queue, &completions, &mut memory, &theirs);
    let echoed_bytes = peer.run()?;
    writeln!(
        stdout,
        "{echoed_bytes} bytes sent back, {} read from here",
        link::OFFER_BYTES
    )?;
    Ok(())
}

const COMPLETIONS: i32 = 128;
/// 4.096 us times 2 to the power of this is how long an acknowledgement may take: 67 ms.
const TIMEOUT: u8 = 14;
