//! A shared-nothing tensor RPC runtime that speaks GRPC++, the star protocol of DeepRec.

#![forbid(unsafe_code)]

pub mod model;
