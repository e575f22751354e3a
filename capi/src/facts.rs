#![expect(unsafe_code, reason = "exported functions over pointers")]
//! What a doctor wants to know of machine, process and configuration.

use std::ffi::{CString, c_char, c_void};
use std::path::Path;
use std::sync::LazyLock;

use grpcxx_memory::{Arena, ArenaOptions};
use grpcxx_rpc::Status;
use grpcxx_runtime::config::VARIABLES;
use grpcxx_runtime::host::HostKind;
use grpcxx_runtime::placement::{allowed_cpus, cpu_time};
use grpcxx_runtime::{Rdma, StartReport};
use rustix::process::{Resource, getrlimit};

use crate::boundary::guarded;
use crate::options::COptions;
use crate::status::c_string;

type FactFn = extern "C" fn(*mut c_void, *const c_char, *const c_char);
type VariableFn = extern "C" fn(
    *mut c_void,
    *const c_char,
    *const c_char,
    *const c_char,
    *const c_char,
    *const c_char,
);

/// What is found on this machine, as names and values.
pub fn facts() -> Vec<(&'static str, String)> {
    let mut facts = vec![("version", env!("CARGO_PKG_VERSION").to_owned())];
    match COptions::default().config() {
        Ok((_, warnings)) if warnings.is_empty() => facts.push(("configuration", "ok".to_owned())),
        Ok((_, warnings)) => {
            let lines: Vec<String> = warnings.iter().map(ToString::to_string).collect();
            facts.push(("configuration", lines.join("\n")));
        }
        Err(status) => facts.push(("configuration", status.message.into_owned())),
    }
    match trial(&[]) {
        Ok(report) => {
            let host = match report.host.kind {
                HostKind::Glommio => "glommio",
                HostKind::Native => "native",
            };
            facts.push(("driver", report.driver.driver.to_string()));
            facts.push(("driver_why", report.driver.why));
            facts.push(("host", host.to_owned()));
            facts.push(("host_why", report.host.why));
            facts.push(("policy", report.policy));
            match report.rdma {
                Rdma::On { device, .. } => facts.push(("rdma", device)),
                Rdma::Off { why } => {
                    facts.push(("rdma", "none".to_owned()));
                    facts.push(("rdma_why", why));
                }
            }
        }
        Err(status) => {
            facts.push(("driver", "none".to_owned()));
            facts.push(("driver_why", status.message.into_owned()));
        }
    }
    let io_uring = match trial(&[("GRPCXX_DRIVER", "io_uring"), ("GRPCXX_HOST", "native")]) {
        Ok(_) => "yes".to_owned(),
        Err(status) => status.message.into_owned(),
    };
    facts.push(("io_uring", io_uring));
    let memlock = getrlimit(Resource::Memlock).current;
    let memlock = memlock.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
    facts.push(("memlock_bytes", memlock));
    facts.push(("cpus_allowed", allowed_cpus().as_slice().len().to_string()));
    facts.push(("cpu_time", cpu_time().to_string()));
    facts.push(("memory_bytes", memory_bytes()));
    facts.push((
        "huge_pages",
        word_in_brackets("/sys/kernel/mm/transparent_hugepage/enabled"),
    ));
    facts.push(("shared_memory", shared_memory()));
    facts.push(("rdma_devices", rdma_devices()));
    facts
}

/// Starts an engine that does nothing, to see what it chooses.
fn trial(variables: &[(&str, &str)]) -> Result<StartReport, Status> {
    let mut options = COptions::default();
    for (name, value) in [("GRPCXX_SHARDS", "1"), ("GRPCXX_ARENA_BYTES", "1MiB")]
        .iter()
        .chain(variables)
    {
        options.set_variable(name, value);
    }
    let (config, _) = options.config()?;
    let engine = grpcxx_runtime::Engine::start(options.engine_options(&config))
        .map_err(|error| Status::new(grpcxx_rpc::Code::FailedPrecondition, error.to_string()))?;
    Ok(engine.start_report().clone())
}

fn memory_bytes() -> String {
    let kib = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("MemTotal:"))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
        });
    kib.map_or_else(|| "unknown".to_owned(), |kib| (kib << 10).to_string())
}

fn word_in_brackets(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let word = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    word.map_or("unknown", |(word, _)| word).to_owned()
}

/// How much of it there may be, in bytes, or why there is none.
fn shared_memory() -> String {
    let options = ArenaOptions::default().with(|options| {
        options.capacity_bytes = 1 << 20;
        options.shared = true;
    });
    match Arena::new(options) {
        Ok(_) => grpcxx_memory::usable_memory_bytes().to_string(),
        Err(error) => format!("cannot be had: {error}"),
    }
}

/// What the kernel knows, whether or not it can be used.
fn rdma_devices() -> String {
    let devices = Path::new("/sys/class/infiniband");
    let mut names: Vec<String> = match std::fs::read_dir(devices) {
        Ok(entries) => entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect(),
        Err(_) => Vec::new(),
    };
    names.sort();
    if names.is_empty() {
        return "none".to_owned();
    }
    names.join(", ")
}

/// The texts of a variable, in the order in which C gets them.
static TEXTS: LazyLock<Vec<[CString; 5]>> = LazyLock::new(|| {
    VARIABLES
        .iter()
        .map(|variable| {
            [
                variable.name,
                variable.default,
                variable.unit,
                variable.reader,
                variable.meaning,
            ]
            .map(c_string)
        })
        .collect()
});

#[unsafe(no_mangle)]
pub(crate) extern "C" fn grpcxx_facts(fact: Option<FactFn>, user: *mut c_void) {
    if let Some(fact) = fact {
        for (name, value) in guarded(Vec::new(), facts) {
            let (name, value) = (c_string(name), c_string(&value));
            fact(user, name.as_ptr(), value.as_ptr());
        }
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn grpcxx_variables(variable: Option<VariableFn>, user: *mut c_void) {
    if let Some(variable) = variable {
        for [name, default, unit, reader, meaning] in TEXTS.iter() {
            variable(
                user,
                name.as_ptr(),
                default.as_ptr(),
                unit.as_ptr(),
                reader.as_ptr(),
                meaning.as_ptr(),
            );
        }
    }
}
