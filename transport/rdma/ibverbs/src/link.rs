//! The messages of a link: taken from the queue, sent back, and paid for with credits.

use std::collections::VecDeque;
use std::io;

use ibverbs::ibv_wc_opcode::{IBV_WC_RECV, IBV_WC_RECV_RDMA_WITH_IMM};
use ibverbs::{CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair, ibv_wc};

use crate::setup::{IMMEDIATES, MESSAGE_BYTES, MESSAGES, SetUp};

/// What the device may touch, for as long as the queue exists.
pub(crate) struct Memory {
    receives: MemoryRegion<u8>,
    sends: MemoryRegion<u8>,
    offer: MemoryRegion<u8>,
}

impl Memory {
    pub(crate) fn new(domain: &ProtectionDomain<'_>) -> io::Result<Self> {
        let mut offer = domain.allocate(OFFER_BYTES)?;
        for (index, byte) in offer.iter_mut().enumerate() {
            *byte = (index % 251) as u8;
        }
        Ok(Self {
            receives: domain.allocate(RECEIVES * MESSAGE_BYTES)?,
            sends: domain.allocate(SENDS * MESSAGE_BYTES)?,
            offer,
        })
    }
}

pub(crate) struct Peer<'a> {
    queue: QueuePair<'a>,
    completions: &'a CompletionQueue<'a>,
    memory: &'a mut Memory,
    /// Messages that the link has receives for.
    credits: u16,
    messages_owed: u16,
    immediates_owed: u16,
    sends_free: Vec<usize>,
    /// Elements that wait to be sent back, one message each.
    waiting: VecDeque<Vec<u8>>,
    is_greeted: bool,
    stage: Stage,
    echoed_bytes: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The link's stream goes on.
    Echoing,
    /// The link reads what was offered.
    Offered,
    /// The last message waits to leave.
    Ending,
}

impl<'a> Peer<'a> {
    pub(crate) fn new(
        queue: QueuePair<'a>,
        completions: &'a CompletionQueue<'a>,
        memory: &'a mut Memory,
        theirs: &SetUp,
    ) -> Self {
        Self {
            queue,
            completions,
            memory,
            credits: theirs.messages,
            messages_owed: 0,
            immediates_owed: 0,
            sends_free: (0..SENDS).collect(),
            waiting: VecDeque::new(),
            is_greeted: false,
            stage: Stage::Echoing,
            echoed_bytes: 0,
        }
    }

    /// Serves the link until both streams have ended, and says how many bytes were sent back.
    pub(crate) fn run(&mut self) -> io::Result<usize> {
        let mut completed = [ibv_wc::default(); 16];
        loop {
            let completions = self.completions;
            for completion in completions.poll(&mut completed)?.iter() {
                if let Some((status, vendor)) = completion.error() {
                    return Err(fault(format!("a request failed: {status} ({vendor})")));
                }
                self.complete(completion)?;
            }
            self.send()?;
            let is_quiet = self.waiting.is_empty() && self.sends_free.len() == SENDS;
            if self.stage == Stage::Ending && is_quiet {
                return Ok(self.echoed_bytes);
            }
            std::thread::yield_now();
        }
    }

    fn complete(&mut self, completion: &ibv_wc) -> io::Result<()> {
        let slot = completion.wr_id() as usize;
        match completion.opcode() {
            IBV_WC_RECV => {
                let at = slot * MESSAGE_BYTES;
                let message = self.memory.receives[at..at + completion.len()].to_vec();
                self.messages_owed += 1;
                self.take(&message)?;
                post_receive(&mut self.queue, self.memory, slot)
            }
            IBV_WC_RECV_RDMA_WITH_IMM => {
                let bits = u32::from_be(completion.imm_data().unwrap_or_default());
                self.immediates_owed += 1;
                self.grant(bits & 0x3ff, bits >> 20);
                post_receive(&mut self.queue, self.memory, slot)
            }
            _ => {
                self.sends_free.push(slot - SEND_IDS);
                Ok(())
            }
        }
    }

    fn grant(&mut self, messages: u32, releases: u32) {
        self.is_greeted = true;
        self.credits += messages as u16;
        if releases > 0 && self.stage == Stage::Offered {
            self.stage = Stage::Ending;
            self.waiting.push_back(element(KIND_END, &[]));
        }
    }

    /// Reads a message: a header of grants, then elements.
    fn take(&mut self, message: &[u8]) -> io::Result<()> {
        let too_short = || fault("a message is shorter than it says");
        let header = message.get(..HEADER_BYTES).ok_or_else(too_short)?;
        let two = |at: usize| u32::from(u16::from_le_bytes([header[at], header[at + 1]]));
        self.grant(two(0), two(4));
        let mut rest = &message[HEADER_BYTES..];
        while let Some((head, body)) = rest.split_first_chunk::<4>() {
            let head = u32::from_le_bytes(*head);
            let len = (head & 0xff_ffff) as usize;
            let content = body.get(..len).ok_or_else(too_short)?;
            match head >> 24 {
                KIND_BYTES => {
                    self.echoed_bytes += len;
                    self.waiting.push_back(element(KIND_BYTES, content));
                    if content.last() == Some(&LAST) {
                        self.waiting.push_back(self.offer());
                        self.stage = Stage::Offered;
                    }
                }
                kind => return Err(fault(format!("an element of kind {kind}"))),
            }
            rest = &body[len..];
        }
        Ok(())
    }

    fn offer(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend((self.memory.offer.as_ptr() as u64).to_le_bytes());
        body.extend((OFFER_BYTES as u64).to_le_bytes());
        body.extend(self.memory.offer.rkey().key.to_le_bytes());
        element(KIND_OFFER, &body)
    }

    fn send(&mut self) -> io::Result<()> {
        while self.is_greeted && self.credits > 0 && !self.sends_free.is_empty() {
            let Some(element) = self.waiting.pop_front() else {
                break;
            };
            let slot = self.sends_free.pop().expect("there is one");
            let at = slot * MESSAGE_BYTES;
            let len = HEADER_BYTES + element.len();
            let message = &mut self.memory.sends[at..at + len];
            message[..2].copy_from_slice(&std::mem::take(&mut self.messages_owed).to_le_bytes());
            message[2..4].copy_from_slice(&std::mem::take(&mut self.immediates_owed).to_le_bytes());
            message[4..8].fill(0);
            message[HEADER_BYTES..].copy_from_slice(&element);
            self.credits -= 1;
            let id = (SEND_IDS + slot) as u64;
            // SAFETY: the slot is not written before its completion frees it, and outlives the
            // queue.
            unsafe {
                self.queue
                    .post_send(&mut self.memory.sends, at..at + len, id)?
            };
        }
        Ok(())
    }
}

/// Posts all receives of a new queue.
pub(crate) fn post_receives(queue: &mut QueuePair<'_>, memory: &mut Memory) -> io::Result<()> {
    (0..RECEIVES).try_for_each(|slot| post_receive(queue, memory, slot))
}

fn post_receive(queue: &mut QueuePair<'_>, memory: &mut Memory, slot: usize) -> io::Result<()> {
    let at = slot * MESSAGE_BYTES;
    let range = at..at + MESSAGE_BYTES;
    // SAFETY: the slot is not looked at before its completion, and outlives the queue.
    unsafe { queue.post_receive(&mut memory.receives, range, slot as u64) }
}

fn element(kind: u32, body: &[u8]) -> Vec<u8> {
    let head = kind << 24 | body.len() as u32;
    [&head.to_le_bytes(), body].concat()
}

fn fault(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

pub(crate) const RECEIVES: usize = (MESSAGES + IMMEDIATES) as usize;
pub(crate) const SENDS: usize = 16;
/// Ends what is sent back.
const LAST: u8 = 255;
/// What the link reads from this program's memory.
pub(crate) const OFFER_BYTES: usize = 1 << 20;
/// Requests to send have numbers from here on, so that they are not taken for receives.
const SEND_IDS: usize = 1000;
const HEADER_BYTES: usize = 8;
const KIND_BYTES: u32 = 1;
const KIND_OFFER: u32 = 2;
const KIND_END: u32 = 3;
