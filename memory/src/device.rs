use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use crate::region::Region;
use crate::{Buffer, BufferMut};

/// Memory that a CPU cannot read, as that of a GPU is. Whoever allocates it says how it is reached.
pub trait DeviceMemory: Send + Sync {
    /// Its addresses, with [`RegionKind::Device`](crate::RegionKind::Device).
    fn region(&self) -> Region;

    /// How another device reaches it, if the driver can tell.
    fn dma_buf(&self) -> Option<DmaBuf<'_>>;

    /// Copies the bytes behind the first `offset_bytes` to memory of the CPU.
    ///
    /// # Errors
    /// The device failed.
    fn copy_to_host(&self, offset_bytes: usize, into: &mut [u8]) -> io::Result<()>;

    /// Copies memory of the CPU behind the first `offset_bytes`.
    ///
    /// # Errors
    /// The device failed.
    fn copy_from_host(&self, offset_bytes: usize, from: &[u8]) -> io::Result<()>;
}

/// Device memory as a dma-buf, from which other devices map it.
#[derive(Clone, Copy, Debug)]
pub struct DmaBuf<'a> {
    /// The dma-buf.
    pub descriptor: BorrowedFd<'a>,
    /// Where in it the region begins, in bytes.
    pub offset_bytes: u64,
}

/// A stretch of device memory, and its copy in memory of the CPU once somebody wants that. Clones
/// share both.
#[derive(Clone)]
pub struct DeviceBuffer {
    block: Arc<Block>,
}

struct Block {
    memory: Arc<dyn DeviceMemory>,
    offset_bytes: usize,
    len_bytes: usize,
    staged: OnceLock<Result<Buffer, Failure>>,
}

/// Why a copy failed; errors of the system cannot be cloned.
struct Failure {
    kind: io::ErrorKind,
    message: String,
}

impl DeviceBuffer {
    /// So many bytes behind the first `offset_bytes`; `None` if the memory does not reach so far.
    pub fn new(
        memory: Arc<dyn DeviceMemory>,
        offset_bytes: usize,
        len_bytes: usize,
    ) -> Option<Self> {
        let (region, end) = (memory.region(), offset_bytes.checked_add(len_bytes)?);
        region.base.checked_add(end)?;
        (end <= region.len).then(|| Self {
            block: Arc::new(Block {
                memory,
                offset_bytes,
                len_bytes,
                staged: OnceLock::new(),
            }),
        })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.block.len_bytes
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.block.len_bytes == 0
    }

    /// Address of the first byte, which only devices can use.
    pub fn address(&self) -> usize {
        self.block.memory.region().base + self.block.offset_bytes
    }

    /// The bytes in memory of the CPU: a copy, made when it is wanted first.
    ///
    /// # Errors
    /// The device failed.
    pub fn stage(&self) -> io::Result<&Buffer> {
        let block = &*self.block;
        let staged = block.staged.get_or_init(|| {
            let mut bytes = BufferMut::zeroed(block.len_bytes);
            match block.memory.copy_to_host(block.offset_bytes, &mut bytes) {
                Ok(()) => Ok(bytes.freeze()),
                Err(error) => Err(Failure {
                    kind: error.kind(),
                    message: error.to_string(),
                }),
            }
        });
        match staged {
            Ok(bytes) => Ok(bytes),
            Err(Failure { kind, message }) => Err(io::Error::new(*kind, message.clone())),
        }
    }
}

impl fmt::Debug for DeviceBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer({} bytes)", self.len())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::RegionKind;

    /// Addresses that nothing is mapped at, so that whoever reads there is killed.
    struct Far {
        bytes: Mutex<Vec<u8>>,
        copies: AtomicUsize,
        is_broken: bool,
    }

    const BASE: usize = 0x100;

    impl DeviceMemory for Far {
        fn region(&self) -> Region {
            Region {
                base: BASE,
                len: self.bytes.lock().unwrap().len(),
                kind: RegionKind::Device,
            }
        }

        fn dma_buf(&self) -> Option<DmaBuf<'_>> {
            None
        }

        fn copy_to_host(&self, offset_bytes: usize, into: &mut [u8]) -> io::Result<()> {
            if self.is_broken {
                return Err(io::Error::other("the GPU has fallen off the bus"));
            }
            self.copies.fetch_add(1, Ordering::Relaxed);
            let bytes = self.bytes.lock().unwrap();
            into.copy_from_slice(&bytes[offset_bytes..offset_bytes + into.len()]);
            Ok(())
        }

        fn copy_from_host(&self, offset_bytes: usize, from: &[u8]) -> io::Result<()> {
            let mut bytes = self.bytes.lock().unwrap();
            bytes[offset_bytes..offset_bytes + from.len()].copy_from_slice(from);
            Ok(())
        }
    }

    fn far(is_broken: bool) -> Arc<Far> {
        Arc::new(Far {
            bytes: Mutex::new(b"0123456789".to_vec()),
            copies: AtomicUsize::new(0),
            is_broken,
        })
    }

    #[test]
    fn device_memory_is_copied_once_and_only_for_who_wants_its_bytes() {
        let memory = far(false);
        let buffer = DeviceBuffer::new(memory.clone(), 1, 8).unwrap();
        let clone = buffer.clone();
        assert_eq!((buffer.len(), buffer.address()), (8, BASE + 1));
        assert_eq!(memory.copies.load(Ordering::Relaxed), 0);
        for buffer in [buffer, clone] {
            assert_eq!(&buffer.stage().unwrap()[..], b"12345678");
        }
        assert_eq!(memory.copies.load(Ordering::Relaxed), 1);
        memory.copy_from_host(0, b"x").unwrap();
    }

    #[test]
    fn what_the_memory_does_not_have_makes_no_buffer() {
        for (offset, len) in [(3, 8), (11, 0), (usize::MAX, 2)] {
            assert!(DeviceBuffer::new(far(false), offset, len).is_none());
        }
        assert!(DeviceBuffer::new(far(false), 10, 0).unwrap().is_empty());
    }

    #[test]
    fn a_device_that_fails_says_so() {
        let buffer = DeviceBuffer::new(far(true), 0, 10).unwrap();
        for _ in 0..2 {
            let error = buffer.stage().unwrap_err();
            assert_eq!(error.to_string(), "the GPU has fallen off the bus");
        }
    }
}
