//! grpcxx-control
