//! grpcxx-runtime
