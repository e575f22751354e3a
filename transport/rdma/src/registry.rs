use std::time::Duration;

use std::sync::Arc;

use grpcxx_memory::{Arena, ArenaOptions, Buffer, BufferMut, DeviceBuffer, DeviceMemory, Region};
use grpcxx_transport::{Time, TransportError};

use crate::adapter::{Adapter, Registration};
use crate::outbound::Loaned;

/// What memory the device knows: arenas for good, the memory of links, and foreign tensors for a
/// while.
///
/// A foreign tensor stays registered for [`LINGER`] after its last use, so that one that is sent to
/// many peers is registered once. Until then its memory is kept, for a registration of memory that
/// was freed and mapped again would silently read what was there before.
pub(crate) struct Registry<A: Adapter> {
    arenas: Vec<Known<A>>,
    /// Memory of other devices, which is read by peers only.
    devices: Vec<KnownDevice<A>>,
    pools: Vec<Pool<A>>,
    foreign: Vec<Option<Foreign<A>>>,
    limits: RegistryLimits,
    foreign_bytes: usize,
    pub(crate) counters: RegistryCounters,
}

/// Bounds of a [`Registry`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegistryLimits {
    /// Most arena memory that is registered.
    pub(crate) arena_bytes: usize,
    /// Shortest foreign memory that is registered; shorter is copied.
    pub(crate) foreign_bytes_min: usize,
    /// Most foreign memory that is registered.
    pub(crate) foreign_bytes: usize,
    /// Most foreign tensors that are registered.
    pub(crate) foreign_entries: usize,
}

/// What a [`Registry`] has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RegistryCounters {
    pub(crate) registered_arena_bytes: u64,
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) refused: u64,
}

/// Memory that a peer may read until the lease is given back.
#[derive(Debug)]
pub(crate) enum Lease {
    /// Of an arena or another device, which is registered for good.
    Arena,
    /// A foreign tensor, by its place in the list.
    Foreign(usize),
}

struct Known<A: Adapter> {
    start: usize,
    len_bytes: usize,
    registration: A::Registration,
    /// Keeps the mapping.
    _anchor: BufferMut,
}

struct KnownDevice<A: Adapter> {
    /// Goes before the memory does.
    registration: A::Registration,
    memory: Arc<dyn DeviceMemory>,
}

struct Pool<A: Adapter> {
    arena: Arena,
    registration: A::Registration,
}

struct Foreign<A: Adapter> {
    start: usize,
    len_bytes: usize,
    /// `None` once it was revoked.
    registration: Option<A::Registration>,
    _memory: Buffer,
    uses: u32,
    idle_since: Time,
}

/// A place to read into, with what keeps it registered meanwhile.
pub(crate) struct Target<R> {
    pub(crate) key: u32,
    pub(crate) registration: Option<R>,
}

impl<A: Adapter> Registry<A> {
    pub(crate) fn new(limits: RegistryLimits) -> Self {
        Self {
            arenas: Vec::new(),
            devices: Vec::new(),
            pools: Vec::new(),
            foreign: Vec::new(),
            limits,
            foreign_bytes: 0,
            counters: RegistryCounters::default(),
        }
    }

    /// Registers an arena, or as much from its start as the system allows. Returns how much that
    /// is.
    pub(crate) fn add_arena(&mut self, adapter: &A, region: Region, anchor: BufferMut) -> usize {
        let left =
            (self.limits.arena_bytes).saturating_sub(self.counters.registered_arena_bytes as usize);
        let mut len_bytes = region.len.min(left);
        while len_bytes >= ARENA_BYTES_MIN {
            match adapter.register(region.base, len_bytes) {
                Ok(registration) => {
                    self.counters.registered_arena_bytes += len_bytes as u64;
                    self.arenas.push(Known {
                        start: region.base,
                        len_bytes,
                        registration,
                        _anchor: anchor,
                    });
                    return len_bytes;
                }
                Err(_) => len_bytes /= 2,
            }
        }
        0
    }

    /// Registers memory of another device for good.
    pub(crate) fn add_device(
        &mut self,
        adapter: &A,
        memory: Arc<dyn DeviceMemory>,
    ) -> Result<(), TransportError> {
        if self.devices.len() == DEVICES_MAX {
            return Err(TransportError {
                operation: "register device memory".to_owned(),
                errno: 0,
                message: format!("{DEVICES_MAX} regions are registered, which is the limit"),
            });
        }
        let registration = adapter.register_device(&*memory)?;
        self.devices.push(KnownDevice {
            registration,
            memory,
        });
        Ok(())
    }

    /// Memory for one link, with its local key.
    pub(crate) fn link_memory(
        &mut self,
        adapter: &A,
        len_bytes: usize,
    ) -> Result<(BufferMut, u32), TransportError> {
        for pool in &mut self.pools {
            if let Ok(memory) = pool.arena.allocate(len_bytes) {
                return Ok((memory, pool.registration.local_key()));
            }
        }
        self.add_pool(adapter, len_bytes)?;
        let pool = self.pools.last_mut().expect("a pool was added just now");
        let memory = pool
            .arena
            .allocate(len_bytes)
            .map_err(|error| TransportError {
                operation: "take memory of an RDMA link".to_owned(),
                errno: 0,
                message: error.to_string(),
            })?;
        Ok((memory, pool.registration.local_key()))
    }

    /// Registers more memory for links, so much that one link of this length fits.
    pub(crate) fn add_pool(&mut self, adapter: &A, len_bytes: usize) -> Result<(), TransportError> {
        let options = |capacity_bytes| {
            ArenaOptions::default().with(|options| {
                options.capacity_bytes = capacity_bytes;
                options.huge_pages = false;
            })
        };
        let mut capacity_bytes = POOL_BYTES.max(len_bytes.next_multiple_of(ARENA_BYTES_MIN));
        loop {
            let arena = Arena::new(options(capacity_bytes))
                .map_err(|error| TransportError::from_io("map memory of RDMA links", &error))?;
            let region = arena.region();
            match adapter.register(region.base, region.len) {
                Ok(registration) => {
                    self.pools.push(Pool {
                        arena,
                        registration,
                    });
                    return Ok(());
                }
                // Less may still be allowed.
                Err(_) if capacity_bytes / 2 >= len_bytes.max(ARENA_BYTES_MIN) => {
                    capacity_bytes /= 2;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The key with which a peer may read `buffer`, or `None` if it should be copied.
    pub(crate) fn lend(
        &mut self,
        adapter: &A,
        buffer: &Buffer,
        now: Time,
    ) -> Option<Loaned<Lease>> {
        let (start, len_bytes) = (buffer.as_ptr().expose_provenance(), buffer.len());
        let address = start as u64;
        if let Some(known) = self.arena_of(start, len_bytes) {
            return Some(Loaned {
                address,
                key: known.registration.remote_key(),
                lease: Lease::Arena,
            });
        }
        if len_bytes < self.limits.foreign_bytes_min {
            return None;
        }
        for (index, entry) in self.foreign.iter_mut().enumerate() {
            if let Some(entry) = entry
                && let Some(registration) = &entry.registration
                && contains(entry.start, entry.len_bytes, start, len_bytes)
            {
                entry.uses += 1;
                self.counters.hits += 1;
                return Some(Loaned {
                    address,
                    key: registration.remote_key(),
                    lease: Lease::Foreign(index),
                });
            }
        }
        self.register_foreign(adapter, buffer, now)
    }

    /// The key of device memory that the RDMA device reads by itself. Other device memory goes by
    /// its copy on the host.
    pub(crate) fn lend_device(&self, buffer: &DeviceBuffer) -> Option<Loaned<Lease>> {
        let known = self.devices.iter().find(|known| {
            let region = known.memory.region();
            contains(region.base, region.len, buffer.address(), buffer.len())
        })?;
        Some(Loaned {
            address: buffer.address() as u64,
            key: known.registration.remote_key(),
            lease: Lease::Arena,
        })
    }

    /// Ends the registrations of foreign memory that `part` lies in, though peers may be reading
    /// it. Returns how many.
    pub(crate) fn revoke(&mut self, part: &[u8]) -> usize {
        let (start, len_bytes) = (part.as_ptr().addr(), part.len());
        let entries = self.foreign.iter_mut().flatten();
        let hit = entries.filter(|entry| contains(entry.start, entry.len_bytes, start, len_bytes));
        hit.filter_map(|entry| entry.registration.take()).count()
    }

    /// Ends a lease.
    pub(crate) fn give_back(&mut self, lease: Lease, now: Time) {
        if let Lease::Foreign(index) = lease
            && let Some(Some(entry)) = self.foreign.get_mut(index)
        {
            entry.uses -= 1;
            entry.idle_since = now;
        }
    }

    /// Ends registrations that were idle long enough. Says whether idle ones are left.
    pub(crate) fn expire(&mut self, now: Time) -> bool {
        let mut is_any_left = false;
        for entry in &mut self.foreign {
            match entry {
                Some(known) if known.uses > 0 => {}
                Some(known) if now.since(known.idle_since) >= LINGER => {
                    self.foreign_bytes -= known.len_bytes;
                    *entry = None;
                }
                Some(_) => is_any_left = true,
                None => {}
            }
        }
        is_any_left
    }

    /// A place for a read of this side's own, or `None` if it should go through staging memory.
    pub(crate) fn target(
        &mut self,
        adapter: &A,
        start: usize,
        len_bytes: usize,
    ) -> Option<Target<A::Registration>> {
        if let Some(known) = self.arena_of(start, len_bytes) {
            return Some(Target {
                key: known.registration.local_key(),
                registration: None,
            });
        }
        if len_bytes < self.limits.foreign_bytes_min {
            return None;
        }
        match adapter.register(start, len_bytes) {
            Ok(registration) => {
                self.counters.misses += 1;
                Some(Target {
                    key: registration.local_key(),
                    registration: Some(registration),
                })
            }
            Err(error) => {
                self.refuse(len_bytes, &error);
                None
            }
        }
    }

    fn arena_of(&self, start: usize, len_bytes: usize) -> Option<&Known<A>> {
        (self.arenas.iter()).find(|known| contains(known.start, known.len_bytes, start, len_bytes))
    }

    fn register_foreign(
        &mut self,
        adapter: &A,
        buffer: &Buffer,
        now: Time,
    ) -> Option<Loaned<Lease>> {
        let len_bytes = buffer.len();
        if len_bytes > self.limits.foreign_bytes {
            return None;
        }
        let index = self.place(len_bytes)?;
        match adapter.register(buffer.as_ptr().addr(), len_bytes) {
            Ok(registration) => {
                let key = registration.remote_key();
                self.counters.misses += 1;
                self.foreign_bytes += len_bytes;
                self.foreign[index] = Some(Foreign {
                    start: buffer.as_ptr().addr(),
                    len_bytes,
                    registration: Some(registration),
                    _memory: buffer.clone(),
                    uses: 1,
                    idle_since: now,
                });
                Some(Loaned {
                    address: buffer.as_ptr().expose_provenance() as u64,
                    key,
                    lease: Lease::Foreign(index),
                })
            }
            Err(error) => {
                self.refuse(len_bytes, &error);
                None
            }
        }
    }

    /// A free place in the list for so many bytes, at the cost of what is idle longest.
    fn place(&mut self, len_bytes: usize) -> Option<usize> {
        loop {
            let has_bytes = self.foreign_bytes + len_bytes <= self.limits.foreign_bytes;
            if has_bytes {
                if let Some(index) = self.foreign.iter().position(Option::is_none) {
                    return Some(index);
                }
                if self.foreign.len() < self.limits.foreign_entries {
                    self.foreign.push(None);
                    return Some(self.foreign.len() - 1);
                }
            }
            let oldest = (self.foreign.iter().enumerate())
                .filter_map(|(index, entry)| entry.as_ref().map(|entry| (index, entry)))
                .filter(|(_, entry)| entry.uses == 0)
                .min_by_key(|(_, entry)| entry.idle_since)?
                .0;
            if let Some(entry) = self.foreign[oldest].take() {
                self.foreign_bytes -= entry.len_bytes;
            }
        }
    }

    fn refuse(&mut self, len_bytes: usize, error: &TransportError) {
        if self.counters.refused == 0 {
            tracing::warn!(
                len_bytes,
                %error,
                "memory cannot be registered for RDMA; such payload is copied from now on (raise RLIMIT_MEMLOCK)"
            );
        }
        self.counters.refused += 1;
    }
}

fn contains(start: usize, len_bytes: usize, part: usize, part_bytes: usize) -> bool {
    part.checked_sub(start)
        .and_then(|offset| offset.checked_add(part_bytes))
        .is_some_and(|end| end <= len_bytes)
}

/// How long a foreign tensor stays registered, and is kept, after its last use.
pub(crate) const LINGER: Duration = Duration::from_millis(10);

/// Least part of an arena that is worth a registration.
const ARENA_BYTES_MIN: usize = 1 << 20;

/// Regions of device memory that are registered for good.
const DEVICES_MAX: usize = 64;

/// Memory of links is mapped and registered in such pieces.
const POOL_BYTES: usize = 4 << 20;
