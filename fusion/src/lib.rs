//! grpcxx-fusion
