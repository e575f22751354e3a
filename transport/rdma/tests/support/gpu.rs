use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use grpcxx_memory::{DeviceBuffer, DeviceMemory, DmaBuf, Region, RegionKind};

/// Memory as a GPU has it: devices read it where it is, a CPU asks for copies, which are counted.
pub(crate) struct Gpu {
    bytes: Vec<u8>,
    dma_buf: File,
    pub(crate) copies: AtomicUsize,
}

impl Gpu {
    /// 256 stripes of so many bytes, each filled with its number.
    pub(crate) fn with_stripes(stripe_bytes: usize) -> Arc<Self> {
        let mut bytes = vec![0; 256 * stripe_bytes];
        for (number, stripe) in bytes.chunks_exact_mut(stripe_bytes).enumerate() {
            stripe.fill(number as u8);
        }
        // Only a driver makes a real one.
        let dma_buf = File::open("/dev/null").expect("it is everywhere");
        Arc::new(Self {
            bytes,
            dma_buf,
            copies: AtomicUsize::new(0),
        })
    }

    /// What a talker sends instead of these bytes, which are all the same.
    pub(crate) fn place(self: &Arc<Self>, bytes: &[u8]) -> DeviceBuffer {
        let number = bytes.first().map_or(0, |&number| usize::from(number));
        let stripe_bytes = self.bytes.len() / 256;
        let memory: Arc<dyn DeviceMemory> = Arc::clone(self) as _;
        DeviceBuffer::new(memory, number * stripe_bytes, bytes.len()).expect("a stripe is longer")
    }
}

impl DeviceMemory for Gpu {
    fn region(&self) -> Region {
        Region {
            base: self.bytes.as_ptr().expose_provenance(),
            len: self.bytes.len(),
            kind: RegionKind::Device,
        }
    }

    fn dma_buf(&self) -> Option<DmaBuf<'_>> {
        Some(DmaBuf {
            descriptor: self.dma_buf.as_fd(),
            offset_bytes: 0,
        })
    }

    fn copy_to_host(&self, offset_bytes: usize, into: &mut [u8]) -> io::Result<()> {
        self.copies.fetch_add(1, Ordering::Relaxed);
        into.copy_from_slice(&self.bytes[offset_bytes..offset_bytes + into.len()]);
        Ok(())
    }

    fn copy_from_host(&self, _: usize, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
