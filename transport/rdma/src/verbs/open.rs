use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use grpcxx_memory::DeviceMemory;
use grpcxx_transport::TransportError;

use super::device::{DeviceReport, Unavailable};
use super::ffi::{self, Functions};
use super::library::library;
use super::ports::{Port, choose_port, ports};
use crate::adapter::{AdapterLimits, Registration};
use crate::options::RdmaOptions;

/// A device in use: its context, protection domain and completion channel.
pub(super) struct OpenDevice {
    pub(super) functions: &'static Functions,
    pub(super) context: NonNull<ffi::Context>,
    pub(super) domain: NonNull<ffi::ProtectionDomain>,
    pub(super) channel: NonNull<ffi::CompletionChannel>,
    pub(super) name: String,
    pub(super) limits: AdapterLimits,
    pub(super) completions_max: u32,
    pub(super) port: Port,
}

/// Memory that a device knows.
pub struct VerbsRegistration {
    device: Arc<OpenDevice>,
    region: NonNull<ffi::MemoryRegion>,
}

// SAFETY: libibverbs lets any thread use a context and what was made of it.
unsafe impl Send for OpenDevice {}
// SAFETY: as above; each of its calls may run beside others.
unsafe impl Sync for OpenDevice {}

// SAFETY: libibverbs lets any thread end a registration, and its keys never change.
unsafe impl Send for VerbsRegistration {}

/// The devices of this machine.
///
/// # Errors
/// There is no libibverbs, or it lists nothing.
pub fn devices() -> Result<Vec<DeviceReport>, Unavailable> {
    let functions = functions()?;
    let list = DeviceList::new(functions)?;
    let mut reports = Vec::new();
    for device in list.devices() {
        let refusal = refusal_of(device);
        let ports = match open_context(functions, device) {
            Ok(context) => {
                let ports = ports(functions, context);
                // SAFETY: opened just now, and used by nobody else.
                unsafe { (functions.ibv_close_device)(context.as_ptr()) };
                ports
            }
            Err(_) => Vec::new(),
        };
        reports.push(DeviceReport {
            name: name_of(device),
            refusal,
            ports: ports.iter().map(|(report, _)| report.clone()).collect(),
        });
    }
    Ok(reports)
}

impl OpenDevice {
    /// Opens the first device and port that the options allow and that work.
    pub(super) fn open(options: &RdmaOptions) -> Result<Self, Unavailable> {
        let functions = functions()?;
        let list = DeviceList::new(functions)?;
        let mut reasons = Vec::new();
        let mut found = Vec::new();
        for device in list.devices() {
            let name = name_of(device);
            found.push(name.clone());
            if options.device.as_ref().is_some_and(|asked| *asked != name) {
                continue;
            }
            if let Some(refusal) = refusal_of(device) {
                reasons.push(format!("{name}: {refusal}"));
                continue;
            }
            match Self::open_one(functions, device, &name, options) {
                Ok(Ok(opened)) => return Ok(opened),
                Ok(Err(reason)) => reasons.push(format!("{name}: {reason}")),
                Err(error) => reasons.push(format!("{name}: {error}")),
            }
        }
        match &options.device {
            Some(asked) if !found.contains(asked) => Err(Unavailable::NoSuchDevice {
                asked: asked.clone(),
                found: found.join(", "),
            }),
            _ => Err(Unavailable::Unusable(reasons.join("; "))),
        }
    }

    /// The device opened, or why its ports will not do.
    fn open_one(
        functions: &'static Functions,
        device: NonNull<ffi::Device>,
        name: &str,
        options: &RdmaOptions,
    ) -> Result<Result<Self, String>, TransportError> {
        let context = open_context(functions, device)?;
        let close = || {
            // SAFETY: opened above; nothing was made of it that still exists.
            unsafe { (functions.ibv_close_device)(context.as_ptr()) };
        };
        let port = match choose_port(functions, context, name, options) {
            Ok(port) => port,
            Err(reason) => {
                close();
                return Ok(Err(reason));
            }
        };
        let mut attributes = MaybeUninit::<ffi::DeviceAttributes>::zeroed();
        // SAFETY: the context is open; all-zero attributes are valid, and the call fills them in.
        let (refused, attributes) = unsafe {
            let refused = (functions.ibv_query_device)(context.as_ptr(), attributes.as_mut_ptr());
            (refused, attributes.assume_init())
        };
        if refused != 0 {
            close();
            return Err(failed("query", name, refused));
        }
        // SAFETY: the context is open.
        let domain = unsafe { (functions.ibv_alloc_pd)(context.as_ptr()) };
        let Some(domain) = NonNull::new(domain) else {
            let error = last_error("allocate a protection domain of", name);
            close();
            return Err(error);
        };
        // SAFETY: the context is open.
        let channel = unsafe { (functions.ibv_create_comp_channel)(context.as_ptr()) };
        let Some(channel) = NonNull::new(channel) else {
            let error = last_error("create a completion channel of", name);
            // SAFETY: allocated above, nothing uses it.
            unsafe { (functions.ibv_dealloc_pd)(domain.as_ptr()) };
            close();
            return Err(error);
        };
        let reads = (attributes
            .max_qp_rd_atom
            .min(attributes.max_qp_init_rd_atom))
        .clamp(1, 255);
        let opened = Self {
            functions,
            context,
            domain,
            channel,
            name: format!("{name} port {}", port.number),
            limits: AdapterLimits {
                reads_per_queue: reads as u8,
                requests_per_queue: attributes.max_qp_wr.max(1) as u32,
                inline_bytes: INLINE_BYTES,
                message_bytes: 1 << 30,
                is_software: attributes.vendor[0] == ffi::VENDOR_SOFTWARE,
            },
            completions_max: attributes.max_cqe.max(1) as u32,
            port,
        };
        for descriptor in opened.descriptors() {
            set_nonblocking(descriptor)
                .map_err(|error| TransportError::from_io(format!("set up {name}"), &error))?;
        }
        Ok(Ok(opened))
    }

    /// The descriptors of completions and of faults.
    pub(super) fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        // SAFETY: context and channel live as long as `self`, and with them their descriptors.
        unsafe {
            let channel = self.channel.as_ref().fd;
            let faults = self.context.as_ref().async_fd;
            [
                BorrowedFd::borrow_raw(channel),
                BorrowedFd::borrow_raw(faults),
            ]
        }
    }

    /// Registers memory for reads by peers and for this side's own use.
    pub(super) fn register(
        self: &Arc<Self>,
        start: usize,
        len_bytes: usize,
    ) -> Result<VerbsRegistration, TransportError> {
        let access = ffi::ACCESS_LOCAL_WRITE | ffi::ACCESS_REMOTE_READ;
        let start = ptr::with_exposed_provenance_mut::<c_void>(start);
        // SAFETY: the domain is there. The kernel checks that the memory is; the device touches it
        // only for requests that name its keys.
        let region =
            unsafe { (self.functions.ibv_reg_mr)(self.domain.as_ptr(), start, len_bytes, access) };
        match NonNull::new(region) {
            Some(region) => Ok(VerbsRegistration {
                device: Arc::clone(self),
                region,
            }),
            None => Err(last_error(
                &format!("register {len_bytes} bytes with"),
                &self.name,
            )),
        }
    }
}

impl OpenDevice {
    /// Registers memory of another device by its dma-buf.
    pub(super) fn register_device(
        self: &Arc<Self>,
        memory: &dyn DeviceMemory,
    ) -> Result<VerbsRegistration, TransportError> {
        let region = memory.region();
        let operation = format!("register {} bytes of device memory with", region.len);
        let refuse = |message: &str| TransportError {
            operation: format!("{operation} RDMA device {}", self.name),
            errno: NOT_SUPPORTED,
            message: message.to_owned(),
        };
        let register = library().ok().and_then(|library| library.register_dmabuf);
        let register = register.ok_or_else(|| {
            refuse("this libibverbs has no ibv_reg_dmabuf_mr; it needs rdma-core 34 or newer")
        })?;
        let dma_buf = memory.dma_buf().ok_or_else(|| {
            refuse("the memory has no dma-buf; its driver must be able to export one")
        })?;
        let descriptor = dma_buf.descriptor.as_raw_fd();
        // SAFETY: the domain is there, and the descriptor as long as it is borrowed, which outlasts
        // the call. The kernel checks both and keeps the dma-buf. Peers only read, at the addresses
        // that the region has.
        let found = unsafe {
            register(
                self.domain.as_ptr(),
                dma_buf.offset_bytes,
                region.len,
                region.base as u64,
                descriptor,
                ffi::ACCESS_REMOTE_READ,
            )
        };
        match NonNull::new(found) {
            Some(region) => Ok(VerbsRegistration {
                device: Arc::clone(self),
                region,
            }),
            None => Err(last_error(&operation, &self.name)),
        }
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        // SAFETY: all three are open, and everything made of them has a reference to `self` and is
        // gone.
        unsafe {
            (self.functions.ibv_destroy_comp_channel)(self.channel.as_ptr());
            (self.functions.ibv_dealloc_pd)(self.domain.as_ptr());
            (self.functions.ibv_close_device)(self.context.as_ptr());
        }
    }
}

impl Registration for VerbsRegistration {
    fn local_key(&self) -> u32 {
        // SAFETY: the region is there until the drop.
        unsafe { self.region.as_ref().lkey }
    }

    fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.region.as_ref().rkey }
    }
}

impl Drop for VerbsRegistration {
    fn drop(&mut self) {
        // SAFETY: registered by `register`, ended only here.
        unsafe { (self.device.functions.ibv_dereg_mr)(self.region.as_ptr()) };
    }
}

/// The devices that libibverbs lists.
struct DeviceList {
    functions: &'static Functions,
    list: *mut *mut ffi::Device,
    count: usize,
}

impl DeviceList {
    fn new(functions: &'static Functions) -> Result<Self, Unavailable> {
        let mut count: c_int = 0;
        // SAFETY: the count is ours to be written.
        let list = unsafe { (functions.ibv_get_device_list)(&mut count) };
        let count = usize::try_from(count).unwrap_or(0);
        let list = Self {
            functions,
            list,
            count: if list.is_null() { 0 } else { count },
        };
        if list.count == 0 {
            return Err(Unavailable::NoDevice);
        }
        Ok(list)
    }

    fn devices(&self) -> impl Iterator<Item = NonNull<ffi::Device>> {
        // SAFETY: the list has `count` entries until it is freed by the drop.
        let devices = unsafe { std::slice::from_raw_parts(self.list, self.count) };
        devices.iter().filter_map(|device| NonNull::new(*device))
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        if !self.list.is_null() {
            // SAFETY: made by `ibv_get_device_list`; devices that were opened stay.
            unsafe { (self.functions.ibv_free_device_list)(self.list) };
        }
    }
}

fn functions() -> Result<&'static Functions, Unavailable> {
    match library() {
        Ok(library) => Ok(&library.functions),
        Err(reason) => Err(Unavailable::Library(reason.to_owned())),
    }
}

fn name_of(device: NonNull<ffi::Device>) -> String {
    // SAFETY: the device is of a list that exists, and its name ends with a zero.
    let name = unsafe { CStr::from_ptr(device.as_ref().name.as_ptr()) };
    name.to_string_lossy().into_owned()
}

fn refusal_of(device: NonNull<ffi::Device>) -> Option<&'static str> {
    // SAFETY: the device is of a list that exists.
    let transport_type = unsafe { device.as_ref().transport_type };
    (transport_type != ffi::TRANSPORT_IB)
        .then_some("neither InfiniBand nor RoCE: iWARP has no writes with immediate data")
}

fn open_context(
    functions: &'static Functions,
    device: NonNull<ffi::Device>,
) -> Result<NonNull<ffi::Context>, TransportError> {
    // SAFETY: the device is of a list that exists.
    let context = unsafe { (functions.ibv_open_device)(device.as_ptr()) };
    NonNull::new(context).ok_or_else(|| last_error("open", &name_of(device)))
}

fn set_nonblocking(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(descriptor)?;
    Ok(rustix::fs::fcntl_setfl(
        descriptor,
        flags | rustix::fs::OFlags::NONBLOCK,
    )?)
}

pub(super) fn last_error(operation: &str, name: &str) -> TransportError {
    TransportError::from_io(
        format!("{operation} RDMA device {name}"),
        &io::Error::last_os_error(),
    )
}

/// An error that a verb returned as its value.
pub(super) fn failed(operation: &str, name: &str, errno: c_int) -> TransportError {
    TransportError::from_io(
        format!("{operation} RDMA device {name}"),
        &io::Error::from_raw_os_error(errno.abs()),
    )
}

/// What cannot be: `EOPNOTSUPP`.
const NOT_SUPPORTED: c_int = 95;

/// What most devices take without a second thought.
const INLINE_BYTES: u32 = 128;
