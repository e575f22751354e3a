//! The part of the C interface of libibverbs that this crate uses. The layouts have been the same
//! since rdma-core 17 (symbol version `IBVERBS_1.1`); the assertions at the end hold them to its
//! header.

use std::ffi::{c_char, c_int, c_uint, c_void};

#[repr(C)]
pub(super) struct Device {
    _ops: [usize; 2],
    pub(super) node_type: c_int,
    pub(super) transport_type: c_int,
    pub(super) name: [c_char; 64],
}

/// Calls that libibverbs makes without a symbol: each driver has its own.
#[repr(C)]
pub(super) struct ContextOperations {
    _before_poll: [usize; 11],
    pub(super) poll_cq:
        Option<unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut WorkCompletion) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut CompletionQueue, c_int) -> c_int>,
    _before_post: [usize; 12],
    pub(super) post_send: Option<
        unsafe extern "C" fn(*mut QueuePair, *mut SendRequest, *mut *mut SendRequest) -> c_int,
    >,
    pub(super) post_recv: Option<
        unsafe extern "C" fn(
            *mut QueuePair,
            *mut ReceiveRequest,
            *mut *mut ReceiveRequest,
        ) -> c_int,
    >,
    _after_post: [usize; 5],
}

#[repr(C)]
pub(super) struct Context {
    pub(super) device: *mut Device,
    pub(super) ops: ContextOperations,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
    pub(super) num_comp_vectors: c_int,
}

#[repr(C)]
pub(super) struct ProtectionDomain {
    pub(super) context: *mut Context,
    _handle: u32,
}

#[repr(C)]
pub(super) struct CompletionChannel {
    _context: *mut Context,
    pub(super) fd: c_int,
    _reference_count: c_int,
}

#[repr(C)]
pub(super) struct CompletionQueue {
    pub(super) context: *mut Context,
    pub(super) channel: *mut CompletionChannel,
    pub(super) user: *mut c_void,
    _handle: u32,
    pub(super) entries: c_int,
}

#[repr(C)]
pub(super) struct MemoryRegion {
    _context: *mut Context,
    _pd: *mut ProtectionDomain,
    pub(super) address: *mut c_void,
    pub(super) length: usize,
    _handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

#[repr(C)]
pub(super) struct QueuePair {
    pub(super) context: *mut Context,
    _before_number: [usize; 5],
    _handle: u32,
    pub(super) number: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QueueCapabilities {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

#[repr(C)]
pub(super) struct QueueInit {
    pub(super) user: *mut c_void,
    pub(super) send_cq: *mut CompletionQueue,
    pub(super) recv_cq: *mut CompletionQueue,
    pub(super) srq: *mut c_void,
    pub(super) cap: QueueCapabilities,
    pub(super) qp_type: c_int,
    pub(super) sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct GlobalRoute {
    pub(super) dgid: [u64; 2],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct AddressHandle {
    pub(super) grh: GlobalRoute,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QueueAttributes {
    pub(super) qp_state: c_uint,
    pub(super) cur_qp_state: c_uint,
    pub(super) path_mtu: c_uint,
    pub(super) path_mig_state: c_uint,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: QueueCapabilities,
    pub(super) ah_attr: AddressHandle,
    pub(super) alt_ah_attr: AddressHandle,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Gather {
    pub(super) address: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ReceiveRequest {
    pub(super) wr_id: u64,
    pub(super) next: *mut ReceiveRequest,
    pub(super) sg_list: *mut Gather,
    pub(super) num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct SendRequest {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendRequest,
    pub(super) sg_list: *mut Gather,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_uint,
    pub(super) send_flags: c_uint,
    pub(super) imm_data: u32,
    pub(super) remote_address: u64,
    pub(super) rkey: u32,
    pub(super) rest: [u64; 9],
}

impl SendRequest {
    pub(super) const EMPTY: Self = Self {
        wr_id: 0,
        next: std::ptr::null_mut(),
        sg_list: std::ptr::null_mut(),
        num_sge: 0,
        opcode: 0,
        send_flags: 0,
        imm_data: 0,
        remote_address: 0,
        rkey: 0,
        rest: [0; 9],
    };
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct WorkCompletion {
    pub(super) wr_id: u64,
    pub(super) status: c_uint,
    pub(super) opcode: c_uint,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: c_uint,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

#[repr(C)]
pub(super) struct DeviceAttributes {
    pub(super) firmware: [c_char; 64],
    _identity: [u64; 2],
    pub(super) max_mr_size: u64,
    _page_sizes: u64,
    /// Its number, its part, and that part's version.
    pub(super) vendor: [u32; 3],
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    _capabilities: c_uint,
    pub(super) max_sge: c_int,
    _max_sge_rd: c_int,
    pub(super) max_cq: c_int,
    pub(super) max_cqe: c_int,
    pub(super) max_mr: c_int,
    _max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    _max_ee_rd_atom: c_int,
    _max_res_rd_atom: c_int,
    pub(super) max_qp_init_rd_atom: c_int,
    _rest: [u32; 16],
    _tail: [u8; 3],
    pub(super) ports: u8,
}

#[repr(C)]
#[derive(Default)]
pub(super) struct PortAttributes {
    pub(super) state: c_uint,
    pub(super) max_mtu: c_uint,
    pub(super) active_mtu: c_uint,
    pub(super) gid_table_len: c_int,
    _capabilities: u32,
    pub(super) max_message_bytes: u32,
    _counters: [u32; 2],
    _pkeys: u16,
    pub(super) lid: u16,
    _sm_lid: u16,
    _bytes: [u8; 8],
    pub(super) link_layer: u8,
    _flags: u8,
    _capabilities2: u16,
    _speed: u16,
}

#[repr(C)]
pub(super) struct AsyncEvent {
    /// The queue pair, completion queue or port that the event is about.
    pub(super) element: usize,
    pub(super) event_type: c_uint,
}

/// A function that libibverbs exports.
macro_rules! verbs {
    ($($field:ident: fn($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of libibverbs, as its symbols of the same names are.
        pub(super) struct Functions {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Functions {
            /// Looks every function up.
            ///
            /// # Safety
            /// The library is libibverbs, and stays loaded as long as the functions are used.
            pub(super) unsafe fn load(library: &libloading::Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the types are those of the header; that the library is the right
                        // one, the caller has stated.
                        unsafe { *library.get(concat!(stringify!($field), "\0").as_bytes())? }
                    },)*
                })
            }
        }
    };
}

verbs! {
    ibv_get_device_list: fn(*mut c_int) -> *mut *mut Device;
    ibv_free_device_list: fn(*mut *mut Device) -> ();
    ibv_open_device: fn(*mut Device) -> *mut Context;
    ibv_close_device: fn(*mut Context) -> c_int;
    ibv_query_device: fn(*mut Context, *mut DeviceAttributes) -> c_int;
    ibv_query_port: fn(*mut Context, u8, *mut PortAttributes) -> c_int;
    ibv_query_gid: fn(*mut Context, u8, c_int, *mut [u8; 16]) -> c_int;
    ibv_alloc_pd: fn(*mut Context) -> *mut ProtectionDomain;
    ibv_dealloc_pd: fn(*mut ProtectionDomain) -> c_int;
    ibv_reg_mr: fn(*mut ProtectionDomain, *mut c_void, usize, c_int) -> *mut MemoryRegion;
    ibv_dereg_mr: fn(*mut MemoryRegion) -> c_int;
    ibv_create_comp_channel: fn(*mut Context) -> *mut CompletionChannel;
    ibv_destroy_comp_channel: fn(*mut CompletionChannel) -> c_int;
    ibv_create_cq: fn(*mut Context, c_int, *mut c_void, *mut CompletionChannel, c_int) -> *mut CompletionQueue;
    ibv_destroy_cq: fn(*mut CompletionQueue) -> c_int;
    ibv_get_cq_event: fn(*mut CompletionChannel, *mut *mut CompletionQueue, *mut *mut c_void) -> c_int;
    ibv_ack_cq_events: fn(*mut CompletionQueue, c_uint) -> ();
    ibv_create_qp: fn(*mut ProtectionDomain, *mut QueueInit) -> *mut QueuePair;
    ibv_modify_qp: fn(*mut QueuePair, *mut QueueAttributes, c_int) -> c_int;
    ibv_destroy_qp: fn(*mut QueuePair) -> c_int;
    ibv_get_async_event: fn(*mut Context, *mut AsyncEvent) -> c_int;
    ibv_ack_async_event: fn(*mut AsyncEvent) -> ();
}

/// `ibv_reg_dmabuf_mr`, which libibverbs has since rdma-core 34.
pub(super) type RegisterDmabuf =
    unsafe extern "C" fn(*mut ProtectionDomain, u64, usize, u64, c_int, c_int) -> *mut MemoryRegion;

pub(super) const TRANSPORT_IB: c_int = 0;
/// The vendor that devices in software give: none.
pub(super) const VENDOR_SOFTWARE: u32 = 0xff_ffff;
pub(super) const PORT_ACTIVE: c_uint = 4;
pub(super) const LINK_LAYER_ETHERNET: u8 = 2;

pub(super) const QPT_RC: c_int = 2;
pub(super) const QPS_INIT: c_uint = 1;
pub(super) const QPS_RTR: c_uint = 2;
pub(super) const QPS_RTS: c_uint = 3;
pub(super) const QPS_ERR: c_uint = 6;

pub(super) const QP_STATE: c_int = 1;
pub(super) const QP_ACCESS_FLAGS: c_int = 8;
pub(super) const QP_PKEY_INDEX: c_int = 16;
pub(super) const QP_PORT: c_int = 32;
pub(super) const QP_AV: c_int = 128;
pub(super) const QP_PATH_MTU: c_int = 256;
pub(super) const QP_TIMEOUT: c_int = 512;
pub(super) const QP_RETRY_CNT: c_int = 1024;
pub(super) const QP_RNR_RETRY: c_int = 2048;
pub(super) const QP_RQ_PSN: c_int = 4096;
pub(super) const QP_MAX_QP_RD_ATOMIC: c_int = 8192;
pub(super) const QP_MIN_RNR_TIMER: c_int = 32_768;
pub(super) const QP_SQ_PSN: c_int = 65_536;
pub(super) const QP_MAX_DEST_RD_ATOMIC: c_int = 131_072;
pub(super) const QP_DEST_QPN: c_int = 1_048_576;

pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_int = 2;
pub(super) const ACCESS_REMOTE_READ: c_int = 4;

pub(super) const WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
pub(super) const WR_SEND: c_uint = 2;
pub(super) const WR_RDMA_READ: c_uint = 4;
pub(super) const SEND_SIGNALED: c_uint = 2;
pub(super) const SEND_INLINE: c_uint = 8;

pub(super) const WC_RECV: c_uint = 128;
pub(super) const WC_RECV_RDMA_WITH_IMM: c_uint = 129;

pub(super) const EVENT_CQ_ERR: c_uint = 0;
pub(super) const EVENT_QP_FATAL: c_uint = 1;
pub(super) const EVENT_QP_REQ_ERR: c_uint = 2;
pub(super) const EVENT_QP_ACCESS_ERR: c_uint = 3;
pub(super) const EVENT_DEVICE_FATAL: c_uint = 8;
pub(super) const EVENT_PORT_ERR: c_uint = 10;

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Device, node_type) == 16 && offset_of!(Device, name) == 24);
    assert!(offset_of!(Context, ops) == 8 && offset_of!(Context, async_fd) == 268);
    assert!(offset_of!(ContextOperations, poll_cq) == 88);
    assert!(offset_of!(ContextOperations, req_notify_cq) == 96);
    assert!(offset_of!(ContextOperations, post_send) == 200);
    assert!(offset_of!(ContextOperations, post_recv) == 208);
    assert!(size_of::<ContextOperations>() == 256);
    assert!(offset_of!(CompletionChannel, fd) == 8);
    assert!(offset_of!(CompletionQueue, user) == 16 && offset_of!(CompletionQueue, entries) == 28);
    assert!(size_of::<MemoryRegion>() == 48 && offset_of!(MemoryRegion, rkey) == 40);
    assert!(offset_of!(QueuePair, number) == 52);
    assert!(size_of::<QueueInit>() == 64 && offset_of!(QueueInit, qp_type) == 52);
    assert!(size_of::<QueueAttributes>() == 144 && size_of::<AddressHandle>() == 32);
    assert!(offset_of!(QueueAttributes, ah_attr) == 56);
    assert!(offset_of!(QueueAttributes, pkey_index) == 120);
    assert!(offset_of!(QueueAttributes, timeout) == 130);
    assert!(offset_of!(QueueAttributes, rate_limit) == 136);
    assert!(size_of::<Gather>() == 16 && size_of::<ReceiveRequest>() == 32);
    assert!(size_of::<SendRequest>() == 128 && offset_of!(SendRequest, remote_address) == 40);
    assert!(size_of::<WorkCompletion>() == 48 && offset_of!(WorkCompletion, wc_flags) == 36);
    assert!(size_of::<DeviceAttributes>() == 232 && offset_of!(DeviceAttributes, ports) == 227);
    assert!(offset_of!(DeviceAttributes, max_mr_size) == 80);
    assert!(offset_of!(DeviceAttributes, max_cqe) == 132);
    assert!(offset_of!(DeviceAttributes, max_qp_init_rd_atom) == 156);
    assert!(size_of::<PortAttributes>() == 52 && offset_of!(PortAttributes, lid) == 34);
    assert!(offset_of!(PortAttributes, link_layer) == 46);
    assert!(size_of::<AsyncEvent>() == 16);
};
