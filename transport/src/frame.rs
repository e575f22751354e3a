use grpcxx_memory::{Buffer, DeviceBuffer};

/// Bytes that leave a link together: a head, with payload spliced in by reference.
///
/// A frame moves into [`Transport::send`](crate::Transport::send) and comes back in
/// [`LinkHandler::sent`](crate::LinkHandler::sent), so its memory can be used again.
#[derive(Debug, Default)]
pub struct Frame {
    bytes: Vec<u8>,
    splices: Vec<Splice>,
    payload_bytes: u64,
    /// The sender's own mark; links never look at it.
    pub token: u64,
}

#[derive(Debug)]
struct Splice {
    at: usize,
    payload: Payload,
}

#[derive(Debug)]
enum Payload {
    Host(Buffer),
    Device(DeviceBuffer),
}

/// A place in a frame; the default is its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FramePlace {
    segment: usize,
    offset_bytes: usize,
}

impl Frame {
    /// An empty frame.
    pub fn new() -> Self {
        Self::default()
    }

    /// The copied part, to append to.
    pub fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// The copied part, without the splices.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Splices `payload` in behind the bytes written so far, without a copy.
    pub fn attach(&mut self, payload: Buffer) {
        if payload.is_empty() {
            return;
        }
        self.payload_bytes += payload.len() as u64;
        self.splices.push(Splice {
            at: self.bytes.len(),
            payload: Payload::Host(payload),
        });
    }

    /// As [`Frame::attach`], with payload in memory of another device. A link lets its peer read
    /// that where it is, if it can, and else sends the copy, which is made then unless
    /// [`DeviceBuffer::stage`] has made it before: call that first where the device may fail, for a
    /// link that has to copy panics if it does.
    pub fn attach_device(&mut self, payload: DeviceBuffer) {
        if payload.is_empty() {
            return;
        }
        self.payload_bytes += payload.len() as u64;
        self.splices.push(Splice {
            at: self.bytes.len(),
            payload: Payload::Device(payload),
        });
    }

    /// Appends what `source` has from a place on, with as many bytes of its payload as are wanted:
    /// these by reference, the rest copied. Returns where it ended, which is in payload or before
    /// it; `None` if that is the end of `source`.
    ///
    /// Payload is cut, unless it lies in memory of another device or `is_whole` says that it must
    /// not be.
    pub fn append(
        &mut self,
        source: &Self,
        from: FramePlace,
        payload_bytes: usize,
        is_whole: impl Fn(&Buffer) -> bool,
    ) -> Option<FramePlace> {
        let mut wanted_bytes = payload_bytes;
        let mut offset_bytes = from.offset_bytes;
        for segment in from.segment..source.segment_count() {
            let Some(splice) = source.splices.get(segment / 2).filter(|_| segment % 2 == 1) else {
                self.bytes.extend_from_slice(source.segment(segment));
                continue;
            };
            if wanted_bytes == 0 {
                return Some(FramePlace {
                    segment,
                    offset_bytes: 0,
                });
            }
            let taken_bytes = match &splice.payload {
                Payload::Device(payload) => {
                    self.attach_device(payload.clone());
                    payload.len()
                }
                Payload::Host(payload) => {
                    let left_bytes = payload.len() - offset_bytes;
                    if left_bytes > wanted_bytes && !is_whole(payload) {
                        let end_bytes = offset_bytes + wanted_bytes;
                        self.attach(payload.slice(offset_bytes..end_bytes));
                        return Some(FramePlace {
                            segment,
                            offset_bytes: end_bytes,
                        });
                    }
                    self.attach(payload.slice(offset_bytes..));
                    left_bytes
                }
            };
            offset_bytes = 0;
            wanted_bytes = wanted_bytes.saturating_sub(taken_bytes);
        }
        None
    }

    /// Length on the link, in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.bytes.len() as u64 + self.payload_bytes
    }

    /// Number of pieces that [`Frame::segment`] knows, empty ones included.
    pub fn segment_count(&self) -> usize {
        2 * self.splices.len() + 1
    }

    /// The piece with this index; in ascending order the pieces are the frame. Some may be empty.
    pub fn segment(&self, index: usize) -> &[u8] {
        let splice = index / 2;
        if index % 2 == 1 {
            return self.splices[splice].payload.host();
        }
        let from = splice.checked_sub(1).map_or(0, |p| self.splices[p].at);
        let to = self.splices.get(splice).map_or(self.bytes.len(), |s| s.at);
        &self.bytes[from..to]
    }

    /// The payload that is the piece with this index; `None` if that piece was copied.
    pub fn payload(&self, index: usize) -> Option<&Buffer> {
        let is_payload = index % 2 == 1;
        is_payload.then(|| self.splices[index / 2].payload.host())
    }

    /// Where the payload that is the piece with this index lies in memory of another device, if it
    /// does.
    pub fn device_payload(&self, index: usize) -> Option<&DeviceBuffer> {
        match &self.splices.get(index / 2)?.payload {
            Payload::Device(payload) if index % 2 == 1 => Some(payload),
            _ => None,
        }
    }

    /// All pieces in order.
    pub fn segments(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.segment_count()).map(|index| self.segment(index))
    }

    /// Empties the frame and drops its references, but keeps its memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.splices.clear();
        self.payload_bytes = 0;
        self.token = 0;
    }
}

impl Payload {
    #[inline]
    fn host(&self) -> &Buffer {
        match self {
            Self::Host(payload) => payload,
            Self::Device(payload) => payload
                .stage()
                .expect("what a device may fail to copy is staged before it is sent"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_the_frame_in_order() {
        let mut frame = Frame::new();
        frame.bytes_mut().extend_from_slice(b"head");
        frame.attach(Buffer::from(&b"payload"[..]));
        frame.attach(Buffer::from(&b"more"[..]));
        frame.bytes_mut().extend_from_slice(b"tail");
        assert_eq!(
            frame.segments().collect::<Vec<_>>().concat(),
            b"headpayloadmoretail"
        );
        assert_eq!(frame.len_bytes(), 19);
        let payloads = (0..frame.segment_count()).map(|index| frame.payload(index).is_some());
        assert_eq!(
            payloads.collect::<Vec<_>>(),
            [false, true, false, true, false]
        );
        frame.clear();
        assert_eq!(frame.len_bytes(), 0);
        assert_eq!(frame.segments().map(<[u8]>::len).sum::<usize>(), 0);
    }

    /// Parts of a frame with pieces of all kinds, payload wanted in steps of so many bytes.
    fn parts(step: usize, is_whole: impl Fn(&Buffer) -> bool + Copy) -> Vec<Vec<u8>> {
        let mut source = Frame::new();
        for (head, payload) in [("head", "0123456789"), ("", "abc"), ("tail", "ABCDEFG")] {
            source.bytes_mut().extend_from_slice(head.as_bytes());
            source.attach(Buffer::from(payload.as_bytes()));
        }
        source.bytes_mut().extend_from_slice(b"end");
        let (mut parts, mut place) = (Vec::new(), Some(FramePlace::default()));
        while let Some(from) = place {
            let mut part = Frame::new();
            place = part.append(&source, from, step, is_whole);
            parts.push(part.segments().collect::<Vec<_>>().concat());
        }
        parts
    }

    #[test]
    fn parts_of_a_frame_are_the_frame() {
        for step in 1..25 {
            let all = parts(step, |_| false).concat();
            assert_eq!(
                all, b"head0123456789abctailABCDEFGend",
                "in steps of {step}"
            );
        }
        assert_eq!(
            parts(5, |_| false),
            [&b"head01234"[..], b"56789", b"abctailAB", b"CDEFGend"]
        );
        assert_eq!(
            parts(5, |payload| payload.len() == 10),
            [&b"head0123456789"[..], b"abctailAB", b"CDEFGend"]
        );
    }
}
