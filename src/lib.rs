//! A shared-nothing tensor RPC runtime that speaks GRPC++, the star protocol of DeepRec.
