use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use crate::region::Region;

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

/// Where the bytes of a buffer lie in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSlice {
    /// Address of the first byte, which only devices can use.
    pub address: usize,
    /// Length in bytes.
    pub len_bytes: usize,
}

/// A stretch of device memory that buffers share, and its copy in memory of the CPU, once somebody wants that.
pub(crate) struct DeviceBlock {
    memory: Arc<dyn DeviceMemory>,
    offset_bytes: usize,
    len_bytes: usize,
    staged: OnceLock<Result<Box<[u8]>, Failure>>,
}

/// Why a copy failed; errors of the system cannot be cloned.
#[derive(Clone)]
struct Failure {
    kind: io::ErrorKind,
    message: String,
}

impl DeviceBlock {
    /// `None` if the memory does not reach so far.
    pub(crate) fn new(
        memory: Arc<dyn DeviceMemory>,
        offset_bytes: usize,
        len_bytes: usize,
    ) -> Option<Self> {
        let (region, end) = (memory.region(), offset_bytes.checked_add(len_bytes)?);
        region.base.checked_add(end)?;
        (end <= region.len).then_some(Self {
            memory,
            offset_bytes,
            len_bytes,
            staged: OnceLock::new(),
        })
    }

    pub(crate) fn address(&self) -> usize {
        self.memory.region().base + self.offset_bytes
    }

    pub(crate) fn region(&self) -> Region {
        self.memory.region()
    }

    /// The copy, made now unless it is there.
    pub(crate) fn stage(&self) -> io::Result<&[u8]> {
        let staged = self.staged.get_or_init(|| {
            let mut bytes = vec![0; self.len_bytes].into_boxed_slice();
            match self.memory.copy_to_host(self.offset_bytes, &mut bytes) {
                Ok(()) => Ok(bytes),
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

    /// The copy of the bytes at a device address.
    ///
    /// # Panics
    /// If the device fails to copy; who makes a buffer of device memory asks [`DeviceBlock::stage`] first.
    #[cold]
    pub(crate) fn host_bytes(&self, address: usize, len_bytes: usize) -> &[u8] {
        match self.stage() {
            Ok(bytes) => {
                let first = address - self.address();
                &bytes[first..first + len_bytes]
            }
            Err(error) => panic!("device memory that was not staged cannot be read: {error}"),
        }
    }
}

impl fmt::Debug for DeviceBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBlock({} bytes)", self.len_bytes)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{Buffer, RegionKind};

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
    fn a_buffer_of_device_memory_is_copied_once_and_only_for_who_reads_it() {
        let memory = far(false);
        let buffer = Buffer::from_device(memory.clone(), 1, 8).unwrap();
        let part = buffer.slice(2..6);
        assert_eq!((buffer.len(), part.len(), part.is_empty()), (8, 4, false));
        let device = part.device().unwrap();
        assert_eq!((device.address, device.len_bytes), (BASE + 3, 4));
        assert_eq!(part.region().unwrap().kind, RegionKind::Device);
        assert!(!part.is_unique() && part.shared_memory().is_none());
        assert_eq!(memory.copies.load(Ordering::Relaxed), 0);

        assert_eq!((&buffer[..], &part[..]), (&b"12345678"[..], &b"3456"[..]));
        let found = buffer.slice_ref(&part[1..3]).unwrap();
        assert_eq!(&found[..], b"45");
        assert!(part.slice_ref(&buffer[..3]).is_none());
        assert_eq!(bytes::Bytes::from(part), &b"3456"[..]);
        assert!(buffer.try_into_mut().is_err());
        assert_eq!(memory.copies.load(Ordering::Relaxed), 1);
        memory.copy_from_host(0, b"x").unwrap();
    }

    #[test]
    fn what_the_memory_does_not_have_makes_no_buffer() {
        for (offset, len) in [(3, 8), (11, 0), (usize::MAX, 2)] {
            assert!(Buffer::from_device(far(false), offset, len).is_none());
        }
        assert!(Buffer::from_device(far(false), 10, 0).unwrap().is_empty());
    }

    #[test]
    fn a_device_that_fails_says_so_before_anybody_reads() {
        let buffer = Buffer::from_device(far(true), 0, 10).unwrap();
        let error = buffer.stage().unwrap_err();
        assert_eq!(error.to_string(), "the GPU has fallen off the bus");
        assert!(Buffer::from(&b"host"[..]).stage().is_ok());
    }
}
