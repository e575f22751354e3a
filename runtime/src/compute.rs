use std::thread;

use crate::blame::panic_text;

/// Runs the code of functions away from the shards.
pub(crate) trait Compute: Send + Sync {
    /// Runs `job` soon, on another thread.
    fn spawn(&self, job: Box<dyn FnOnce() + Send>);
}

/// A pool of threads.
pub(crate) struct ComputePool(rayon_core::ThreadPool);

impl ComputePool {
    /// Starts `threads` threads, or one for each CPU.
    pub(crate) fn start(threads: Option<usize>) -> Result<Self, String> {
        let threads =
            threads.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
        rayon_core::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|index| format!("compute-{index}"))
            // Without one a panic ends the process. The call has its answer: its responder was
            // dropped.
            .panic_handler(|payload| {
                let message = panic_text(payload.as_ref());
                tracing::error!(message, "a function panicked");
            })
            .build()
            .map(Self)
            .map_err(|error| format!("cannot start the compute pool: {error}"))
    }
}

impl Compute for ComputePool {
    fn spawn(&self, job: Box<dyn FnOnce() + Send>) {
        self.0.spawn(job);
    }
}
