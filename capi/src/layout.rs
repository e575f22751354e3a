//! Where the fields of the header's structures lie: the same numbers as in
//! `tests/programs/layout.c`, which a C compiler checks.

use std::mem::offset_of;

use crate::begin::{CCallOptions, CGraphCall};
use crate::boundary::CText;
use crate::flight::{CMemory, CMeta};
use crate::group::{CGroupOptions, COutput};
use crate::peer::CPeerState;

macro_rules! layout {
    ($($type:ty, $size:literal { $($field:ident: $offset:literal),* })*) => {
        $(
            const _: () = assert!(size_of::<$type>() == $size);
            $(const _: () = assert!(offset_of!($type, $field) == $offset);)*
        )*
    };
}

layout! {
    CText, 16 { data: 0, size: 8 }
    CPeerState, 48 { struct_size: 0, is_connected: 8, is_announced: 9, features: 16, status: 24, status_size: 32, medium: 40 }
    CCallOptions, 16 { struct_size: 0, timeout_ms: 8 }
    CMeta, 40 { struct_size: 0, dtype: 8, is_dead: 12, rank: 16, dims: 24, data_size: 32 }
    CMemory, 32 { struct_size: 0, data: 8, release: 16, context: 24 }
    COutput, 40 { struct_size: 0, data: 8, size: 16, release: 24, context: 32 }
    CGroupOptions, 64 {
        struct_size: 0, name: 8, address: 24, generation: 40, timeout_ms: 48, join_timeout_ms: 56
    }
    CGraphCall, 80 {
        struct_size: 0, handle: 8, step_id: 24, feed_names: 32, feeds: 40, num_feeds: 48, fetch_names: 56,
        num_fetches: 64, ps_graph_count: 72, should_trace: 76
    }
}
