//! What links do with TLS, and their limits.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Which connections are TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// None.
    #[default]
    Off,
    /// Those whose dialler begins it; we dial without.
    Accept,
    /// All that we dial, and those whose dialler begins it.
    Dial,
    /// All.
    Require,
}

impl TlsMode {
    /// Whether connections that we dial are TLS.
    pub const fn dials(self) -> bool {
        matches!(self, Self::Dial | Self::Require)
    }

    /// Whether connections without TLS are taken from everybody.
    pub const fn takes_plain(self) -> bool {
        !matches!(self, Self::Require)
    }
}

impl fmt::Display for TlsMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Accept => "accept",
            Self::Dial => "dial",
            Self::Require => "require",
        })
    }
}

impl FromStr for TlsMode {
    type Err = UnknownTlsMode;

    fn from_str(text: &str) -> Result<Self, UnknownTlsMode> {
        [Self::Off, Self::Accept, Self::Dial, Self::Require]
            .into_iter()
            .find(|mode| mode.to_string() == text)
            .ok_or_else(|| UnknownTlsMode(text.to_owned()))
    }
}

/// A text that says nothing about TLS.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` says nothing about TLS; use off, accept, dial or require")]
pub struct UnknownTlsMode(pub String);

/// Says which peers may do without TLS.
pub type PlainPeers = Arc<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// What links do with TLS, and their limits.
#[derive(Clone)]
#[non_exhaustive]
pub struct TlsOptions {
    /// Which connections are TLS.
    pub mode: TlsMode,
    /// Peers that are dialled without TLS and may come without it, whatever the mode says:
    /// originals.
    pub plain_peers: PlainPeers,
    /// Time that a peer has for the handshake.
    pub handshake_time: Duration,
    /// Handshakes under way at a time; others wait.
    pub handshakes_max: usize,
    /// Steps of handshakes in one turn: each holds the shard for up to 0.3 ms.
    pub steps_per_turn: usize,
    /// Frames of one link that are accepted and not yet sent.
    pub queued_frames: usize,
    /// Records sealed with one key before it is replaced. AES-GCM must not seal more than 2^24.
    pub records_per_key: u64,
    /// Memory of all links for payload under way, in bytes. Links that get none read in smaller
    /// pieces.
    pub staging_bytes: usize,
}

impl TlsOptions {
    /// These options with what `change` sets; fields that it leaves alone keep their values.
    ///
    /// ```
    /// use grpcxx_tls::TlsOptions;
    ///
    /// let options = TlsOptions::default().with(|options| options.queued_frames = 64);
    /// assert_eq!(options.queued_frames, 64);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for TlsOptions {
    fn default() -> Self {
        Self {
            mode: TlsMode::Off,
            plain_peers: Arc::new(|_| false),
            handshake_time: Duration::from_secs(10),
            handshakes_max: 1024,
            steps_per_turn: 4,
            queued_frames: 1024,
            records_per_key: 1 << 23,
            staging_bytes: 64 << 20,
        }
    }
}

impl fmt::Debug for TlsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsOptions")
            .field("mode", &self.mode)
            .field("handshake_time", &self.handshake_time)
            .field("handshakes_max", &self.handshakes_max)
            .field("records_per_key", &self.records_per_key)
            .field("staging_bytes", &self.staging_bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_parse_and_unknown_ones_say_what_is_allowed() {
        for (mode, dials, takes_plain) in [
            (TlsMode::Off, false, true),
            (TlsMode::Accept, false, true),
            (TlsMode::Dial, true, true),
            (TlsMode::Require, true, false),
        ] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert_eq!((mode.dials(), mode.takes_plain()), (dials, takes_plain));
        }
        let error = "on".parse::<TlsMode>().unwrap_err().to_string();
        assert_eq!(
            error,
            "`on` says nothing about TLS; use off, accept, dial or require"
        );
    }
}
