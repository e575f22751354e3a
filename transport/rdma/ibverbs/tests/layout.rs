//! Each layout and constant of our `ffi.rs` is that of the package `ibverbs`, which takes them from
//! rdma-core's header.

#[allow(dead_code, reason = "only layouts and constants are compared")]
#[path = "../../src/verbs/ffi.rs"]
mod ffi;

use std::mem::offset_of;

use ibverbs_sys as theirs;

/// The length of a field.
fn width<S, F>(_: impl Fn(&S) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! same {
    ($($ours:ident = $theirs:ident { $($mine:ident = $field:ident),* $(,)? })*) => {$(
        assert_eq!(align_of::<ffi::$ours>(), align_of::<theirs::$theirs>(), stringify!($theirs));
        $(
            let ours = (
                offset_of!(ffi::$ours, $mine),
                width(|value: &ffi::$ours| &value.$mine),
            );
            let expected = (
                offset_of!(theirs::$theirs, $field),
                width(|value: &theirs::$theirs| &value.$field),
            );
            assert_eq!(ours, expected, "{}::{}", stringify!($theirs), stringify!($field));
        )*
    )*};
}

macro_rules! same_length {
    ($($ours:ident = $theirs:ident),* $(,)?) => {$(
        assert_eq!(size_of::<ffi::$ours>(), size_of::<theirs::$theirs>(), stringify!($theirs));
    )*};
}

#[test]
fn what_libibverbs_hands_out_has_our_layout() {
    same! {
        Device = ibv_device { node_type = node_type, transport_type = transport_type, name = name }
        ContextOperations = ibv_context_ops {
            poll_cq = poll_cq, req_notify_cq = req_notify_cq,
            post_send = post_send, post_recv = post_recv,
        }
        Context = ibv_context {
            device = device, ops = ops, cmd_fd = cmd_fd, async_fd = async_fd,
            num_comp_vectors = num_comp_vectors,
        }
        ProtectionDomain = ibv_pd { context = context }
        CompletionChannel = ibv_comp_channel { fd = fd }
        CompletionQueue = ibv_cq {
            context = context, channel = channel, user = cq_context, entries = cqe,
        }
        MemoryRegion = ibv_mr { address = addr, length = length, lkey = lkey, rkey = rkey }
        QueuePair = ibv_qp { context = context, number = qp_num }
    }
    same_length!(ContextOperations = ibv_context_ops, MemoryRegion = ibv_mr);
}

#[test]
fn what_we_hand_to_libibverbs_has_its_layout() {
    same! {
        QueueCapabilities = ibv_qp_cap {
            max_send_wr = max_send_wr, max_recv_wr = max_recv_wr, max_send_sge = max_send_sge,
            max_recv_sge = max_recv_sge, max_inline_data = max_inline_data,
        }
        QueueInit = ibv_qp_init_attr {
            user = qp_context, send_cq = send_cq, recv_cq = recv_cq, srq = srq, cap = cap,
            qp_type = qp_type, sq_sig_all = sq_sig_all,
        }
        GlobalRoute = ibv_global_route {
            dgid = dgid, flow_label = flow_label, sgid_index = sgid_index, hop_limit = hop_limit,
            traffic_class = traffic_class,
        }
        AddressHandle = ibv_ah_attr {
            grh = grh, dlid = dlid, sl = sl, src_path_bits = src_path_bits,
            static_rate = static_rate, is_global = is_global, port_num = port_num,
        }
        QueueAttributes = ibv_qp_attr {
            qp_state = qp_state, cur_qp_state = cur_qp_state, path_mtu = path_mtu,
            path_mig_state = path_mig_state, qkey = qkey, rq_psn = rq_psn, sq_psn = sq_psn,
            dest_qp_num = dest_qp_num, qp_access_flags = qp_access_flags, cap = cap,
            ah_attr = ah_attr, alt_ah_attr = alt_ah_attr, pkey_index = pkey_index,
            alt_pkey_index = alt_pkey_index, en_sqd_async_notify = en_sqd_async_notify,
            sq_draining = sq_draining, max_rd_atomic = max_rd_atomic,
            max_dest_rd_atomic = max_dest_rd_atomic, min_rnr_timer = min_rnr_timer,
            port_num = port_num, timeout = timeout, retry_cnt = retry_cnt, rnr_retry = rnr_retry,
            alt_port_num = alt_port_num, alt_timeout = alt_timeout, rate_limit = rate_limit,
        }
        Gather = ibv_sge { address = addr, length = length, lkey = lkey }
        ReceiveRequest = ibv_recv_wr {
            wr_id = wr_id, next = next, sg_list = sg_list, num_sge = num_sge,
        }
        SendRequest = ibv_send_wr {
            wr_id = wr_id, next = next, sg_list = sg_list, num_sge = num_sge, opcode = opcode,
            send_flags = send_flags, imm_data = __bindgen_anon_1,
        }
    }
    same_length!(
        QueueCapabilities = ibv_qp_cap,
        QueueInit = ibv_qp_init_attr,
        GlobalRoute = ibv_global_route,
        AddressHandle = ibv_ah_attr,
        QueueAttributes = ibv_qp_attr,
        Gather = ibv_sge,
        ReceiveRequest = ibv_recv_wr,
        SendRequest = ibv_send_wr,
    );
    assert_eq!(
        offset_of!(ffi::SendRequest, remote_address),
        offset_of!(theirs::ibv_send_wr, wr)
            + offset_of!(theirs::ibv_send_wr__bindgen_ty_2__bindgen_ty_1, remote_addr)
    );
    assert_eq!(
        offset_of!(ffi::SendRequest, rkey),
        offset_of!(theirs::ibv_send_wr, wr)
            + offset_of!(theirs::ibv_send_wr__bindgen_ty_2__bindgen_ty_1, rkey)
    );
}

#[test]
fn what_libibverbs_fills_in_has_our_layout() {
    same! {
        DeviceAttributes = ibv_device_attr {
            firmware = fw_ver, max_mr_size = max_mr_size, max_qp = max_qp,
            max_qp_wr = max_qp_wr, max_sge = max_sge, max_cq = max_cq, max_cqe = max_cqe,
            max_mr = max_mr, max_qp_rd_atom = max_qp_rd_atom,
            max_qp_init_rd_atom = max_qp_init_rd_atom, ports = phys_port_cnt,
        }
        PortAttributes = ibv_port_attr {
            state = state, max_mtu = max_mtu, active_mtu = active_mtu,
            gid_table_len = gid_tbl_len, max_message_bytes = max_msg_sz, lid = lid,
            link_layer = link_layer,
        }
        AsyncEvent = ibv_async_event { element = element, event_type = event_type }
    }
    assert_eq!(
        offset_of!(ffi::DeviceAttributes, vendor),
        offset_of!(theirs::ibv_device_attr, vendor_id)
    );
    same_length!(
        DeviceAttributes = ibv_device_attr,
        AsyncEvent = ibv_async_event
    );
    // Newer headers have a field more; `ibv_query_port`, the symbol, fills what is before it.
    let end = offset_of!(theirs::ibv_port_attr, port_cap_flags2) + size_of::<u16>();
    assert!(size_of::<ffi::PortAttributes>() >= end);
    assert!(size_of::<ffi::PortAttributes>() <= size_of::<theirs::ibv_port_attr>());
}

#[test]
fn a_completion_is_read_as_it_was_written() {
    same! {
        WorkCompletion = ibv_wc {
            imm_data = imm_data, qp_num = qp_num, src_qp = src_qp, wc_flags = wc_flags,
            pkey_index = pkey_index, slid = slid, sl = sl, dlid_path_bits = dlid_path_bits,
        }
    }
    same_length!(WorkCompletion = ibv_wc);
    let ours = ffi::WorkCompletion {
        wr_id: 1,
        status: 0,
        opcode: ffi::WC_RECV_RDMA_WITH_IMM,
        byte_len: 2,
        ..Default::default()
    };
    let failed = ffi::WorkCompletion {
        status: 5,
        vendor_err: 6,
        ..ours
    };
    let as_theirs = |completion: ffi::WorkCompletion| {
        // SAFETY: both are plain data of one length, and the fields are compared right here.
        unsafe { std::mem::transmute::<ffi::WorkCompletion, theirs::ibv_wc>(completion) }
    };
    let (read, failed) = (as_theirs(ours), as_theirs(failed));
    assert_eq!((read.wr_id(), read.len()), (1, 2));
    assert_eq!(
        read.opcode(),
        theirs::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM
    );
    assert!(read.is_valid());
    assert_eq!(
        failed.error(),
        Some((theirs::ibv_wc_status::IBV_WC_WR_FLUSH_ERR, 6))
    );
}

macro_rules! equal {
    ($($ours:ident = $theirs:expr),* $(,)?) => {$(
        assert_eq!(i64::from(ffi::$ours), i64::from($theirs), stringify!($ours));
    )*};
}

#[test]
fn constants_are_those_of_the_header() {
    use theirs::ibv_access_flags as access;
    use theirs::ibv_qp_attr_mask as mask;
    use theirs::ibv_send_flags as send;
    use theirs::{ibv_port_state, ibv_qp_state, ibv_qp_type, ibv_wc_opcode, ibv_wr_opcode};
    equal! {
        TRANSPORT_IB = theirs::IBV_TRANSPORT_IB,
        PORT_ACTIVE = ibv_port_state::IBV_PORT_ACTIVE,
        LINK_LAYER_ETHERNET = theirs::IBV_LINK_LAYER_ETHERNET,
        QPT_RC = ibv_qp_type::IBV_QPT_RC,
        QPS_INIT = ibv_qp_state::IBV_QPS_INIT,
        QPS_RTR = ibv_qp_state::IBV_QPS_RTR,
        QPS_RTS = ibv_qp_state::IBV_QPS_RTS,
        QPS_ERR = ibv_qp_state::IBV_QPS_ERR,
        QP_STATE = mask::IBV_QP_STATE.0,
        QP_ACCESS_FLAGS = mask::IBV_QP_ACCESS_FLAGS.0,
        QP_PKEY_INDEX = mask::IBV_QP_PKEY_INDEX.0,
        QP_PORT = mask::IBV_QP_PORT.0,
        QP_AV = mask::IBV_QP_AV.0,
        QP_PATH_MTU = mask::IBV_QP_PATH_MTU.0,
        QP_TIMEOUT = mask::IBV_QP_TIMEOUT.0,
        QP_RETRY_CNT = mask::IBV_QP_RETRY_CNT.0,
        QP_RNR_RETRY = mask::IBV_QP_RNR_RETRY.0,
        QP_RQ_PSN = mask::IBV_QP_RQ_PSN.0,
        QP_MAX_QP_RD_ATOMIC = mask::IBV_QP_MAX_QP_RD_ATOMIC.0,
        QP_MIN_RNR_TIMER = mask::IBV_QP_MIN_RNR_TIMER.0,
        QP_SQ_PSN = mask::IBV_QP_SQ_PSN.0,
        QP_MAX_DEST_RD_ATOMIC = mask::IBV_QP_MAX_DEST_RD_ATOMIC.0,
        QP_DEST_QPN = mask::IBV_QP_DEST_QPN.0,
        ACCESS_LOCAL_WRITE = access::IBV_ACCESS_LOCAL_WRITE.0,
        ACCESS_REMOTE_WRITE = access::IBV_ACCESS_REMOTE_WRITE.0,
        ACCESS_REMOTE_READ = access::IBV_ACCESS_REMOTE_READ.0,
        WR_RDMA_WRITE_WITH_IMM = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
        WR_SEND = ibv_wr_opcode::IBV_WR_SEND,
        WR_RDMA_READ = ibv_wr_opcode::IBV_WR_RDMA_READ,
        SEND_SIGNALED = send::IBV_SEND_SIGNALED.0,
        SEND_INLINE = send::IBV_SEND_INLINE.0,
        WC_RECV = ibv_wc_opcode::IBV_WC_RECV,
        WC_RECV_RDMA_WITH_IMM = ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
        EVENT_CQ_ERR = theirs::IBV_EVENT_CQ_ERR,
        EVENT_QP_FATAL = theirs::IBV_EVENT_QP_FATAL,
        EVENT_QP_REQ_ERR = theirs::IBV_EVENT_QP_REQ_ERR,
        EVENT_QP_ACCESS_ERR = theirs::IBV_EVENT_QP_ACCESS_ERR,
        EVENT_DEVICE_FATAL = theirs::IBV_EVENT_DEVICE_FATAL,
        EVENT_PORT_ERR = theirs::IBV_EVENT_PORT_ERR,
    }
}

#[test]
fn every_constant_of_ours_is_compared() {
    let named = |text: &str, before: &str, after: &str| -> Vec<String> {
        text.lines()
            .filter_map(|line| line.trim().strip_prefix(before)?.split(after).next())
            .map(str::to_owned)
            .collect()
    };
    let ours = named(
        include_str!("../../src/verbs/ffi.rs"),
        "pub(super) const ",
        ":",
    );
    let here = include_str!("layout.rs");
    for name in ours
        .iter()
        .filter(|name| !["VENDOR_SOFTWARE", "EMPTY"].contains(&name.as_str()))
    {
        assert!(
            here.contains(&format!("        {name} = ")),
            "{name} is not compared"
        );
    }
    assert!(ours.len() > 30, "the constants are found");
}
