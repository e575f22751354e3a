/// What a transport has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TlsCounters {
    /// Handshakes that led to a link.
    pub handshakes: u64,
    /// Handshakes that failed or took too long.
    pub handshakes_failed: u64,
    /// Accepted links that turned out to be without TLS, and may.
    pub plain: u64,
    /// Accepted links without TLS that were closed for that.
    pub plain_refused: u64,
    /// Links that ended because their records were forged, cut off or against the rules.
    pub broken: u64,
    /// Keys that were replaced on links that are gone.
    pub replaced_keys: u64,
}
