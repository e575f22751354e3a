use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread counts up and any thread reads.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Only the counting thread calls this, so a load and a store are enough.
    pub(crate) fn add(&self, count: u64) {
        let total = self.0.load(Ordering::Relaxed).wrapping_add(count);
        self.0.store(total, Ordering::Relaxed);
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// What a transport has done so far.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct TlsCounters {
            $($(#[doc = $doc])* pub $name: u64,)*
        }

        /// The counters of a transport while it counts.
        #[derive(Debug, Default)]
        pub struct LiveCounters {
            $(pub(crate) $name: Count,)*
        }

        impl LiveCounters {
            /// What has been counted so far.
            pub fn read(&self) -> TlsCounters {
                TlsCounters {
                    $($name: self.$name.0.load(Ordering::Relaxed),)*
                }
            }
        }

        impl TlsCounters {
            /// What these transports have done together.
            pub fn sum(all: impl IntoIterator<Item = Self>) -> Self {
                all.into_iter().fold(Self::default(), |total, one| Self {
                    $($name: total.$name.wrapping_add(one.$name),)*
                })
            }

            /// Name, meaning and value of each counter.
            pub fn entries(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((concat!("tls_", stringify!($name)), concat!($($doc),*), self.$name),)*]
            }
        }
    };
}

counters! {
    /// TLS handshakes that led to a link.
    handshakes,
    /// TLS handshakes that failed or took too long.
    handshakes_failed,
    /// Accepted links that turned out to be without TLS, and may.
    plain,
    /// Accepted links without TLS that were closed for that.
    plain_refused,
    /// Links that ended because their TLS records were forged, cut off or against the rules.
    broken,
    /// TLS keys that were replaced on links that are gone.
    replaced_keys,
}
