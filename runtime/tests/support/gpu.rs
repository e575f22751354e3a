use std::io;
use std::sync::{Arc, Mutex};

use grpcxx_memory::{DeviceMemory, DmaBuf, Region, RegionKind};

/// Memory that only copies reach: at its addresses nothing is mapped, so whoever reads there is
/// killed.
pub(crate) struct Gpu(pub(crate) Mutex<Vec<u8>>);

impl Gpu {
    pub(crate) fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(bytes)))
    }
}

impl DeviceMemory for Gpu {
    fn region(&self) -> Region {
        Region {
            base: 0x1000,
            len: self.0.lock().unwrap().len(),
            kind: RegionKind::Device,
        }
    }

    fn dma_buf(&self) -> Option<DmaBuf<'_>> {
        None
    }

    fn copy_to_host(&self, offset_bytes: usize, into: &mut [u8]) -> io::Result<()> {
        into.copy_from_slice(&self.0.lock().unwrap()[offset_bytes..][..into.len()]);
        Ok(())
    }

    fn copy_from_host(&self, offset_bytes: usize, from: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap()[offset_bytes..][..from.len()].copy_from_slice(from);
        Ok(())
    }
}
