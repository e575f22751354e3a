//! Which trace a call belongs to: graph calls carry it where star has a span context, calls by path
//! as metadata.

pub(crate) mod wire;
