//! Numbers that scrapers ask for, written on threads that may wait, one answer at a time.

use std::sync::Arc;

use grpcxx_rpc::{Code, Status};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Lets one answer be written at a time. A thread that writes cannot be stopped, so without this
/// connections that ask and leave would take all threads of the pool.
pub(super) struct Scrapes {
    turn: Arc<Semaphore>,
}

impl Scrapes {
    pub(super) fn new() -> Self {
        let turn = Arc::new(Semaphore::new(1));
        Self { turn }
    }

    /// Writes an answer once it is its turn. Who stops waiting before has no thread.
    pub(super) async fn write(
        &self,
        text: impl FnOnce() -> Result<String, Status> + Send + 'static,
    ) -> Result<String, Status> {
        let failed = |what: &dyn std::fmt::Display| {
            Status::new(Code::Internal, format!("no metrics: {what}"))
        };
        let turn = Arc::clone(&self.turn).acquire_owned().await;
        let turn = turn.map_err(|error| failed(&error))?;
        let written = spawn_blocking(move || {
            let _turn = turn;
            text()
        });
        written.await.map_err(|error| failed(&error))?
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[test]
    fn those_who_ask_and_leave_take_no_threads() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let scrapes = Scrapes::new();
        let begun = Arc::new(AtomicUsize::new(0));
        let (open, gate) = channel::<()>();
        let gate = Arc::new(std::sync::Mutex::new(gate));
        let ask = || {
            let (begun, gate) = (Arc::clone(&begun), Arc::clone(&gate));
            scrapes.write(move || {
                begun.fetch_add(1, Ordering::Relaxed);
                let _ = gate.lock().unwrap().recv();
                Ok(String::new())
            })
        };
        runtime.block_on(async {
            for _ in 0..20 {
                let waited = timeout(Duration::from_millis(5), ask()).await;
                assert!(waited.is_err(), "the first one still writes");
            }
            assert!(begun.load(Ordering::Relaxed) <= 1);
            drop(open);
            assert_eq!(ask().await, Ok(String::new()));
            assert_eq!(begun.load(Ordering::Relaxed), 2);
        });
    }
}
