//! The simulator: that it passes the suite of all transports whatever it does to the stream, that
//! its faults are what they say, and that the ledger notices every broken contract.

mod faults;
mod ledger;
mod soak;
mod suite;
mod support;
