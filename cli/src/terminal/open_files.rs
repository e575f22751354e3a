use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets the program have as many connections and files as the system allows: the limit that it
/// inherits is often low for the sake of programs that use `select`.
pub(crate) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "the limit of open files stays as it is");
    }
}
