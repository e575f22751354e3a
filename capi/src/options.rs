#![expect(unsafe_code, reason = "exported functions over pointers")]
//! `grpcxx_options`.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::net::SocketAddr;
use std::ptr;
use std::sync::Arc;

use grpcxx_rpc::{Code, Status};
use grpcxx_runtime::cluster::{TaskId, host_of};
use grpcxx_runtime::config::{Config, Warning};
use grpcxx_runtime::exposition::{MoreAwaited, MoreMetrics, ProgramPage};
use grpcxx_runtime::{Device, EngineOptions, Service};

use crate::boundary::{Owned, free, guarded, invalid, text};
use crate::engine::CEngine;
use crate::notices::calling_back;
use crate::service::{CService, ServiceFn};
use crate::start::listen_address;
use crate::status::{CStatus, reporting};

type PrepareFn = extern "C" fn(*mut c_void, *const CEngine) -> *mut CStatus;

/// A function of C that prepares an engine.
struct CPrepare {
    prepare: PrepareFn,
    user: Owned,
}

/// How to start an engine, as C says it.
#[derive(Clone)]
pub(crate) struct COptions {
    task: TaskId,
    num_tasks: usize,
    hosts: Vec<String>,
    listen: Option<SocketAddr>,
    variables: BTreeMap<String, String>,
    devices: Vec<Device>,
    service: Option<Arc<CService>>,
    prepare: Option<Arc<CPrepare>>,
    program_page: ProgramPage,
    lends_shards: Option<bool>,
}

impl Default for COptions {
    fn default() -> Self {
        Self {
            task: TaskId::new("localhost", 0),
            num_tasks: 1,
            hosts: Vec::new(),
            listen: None,
            variables: BTreeMap::new(),
            devices: Vec::new(),
            service: None,
            prepare: None,
            program_page: ProgramPage::default(),
            lends_shards: None,
        }
    }
}

impl COptions {
    /// The settings of the environment, and those that C gave in its place.
    pub(crate) fn config(&self) -> Result<(Config, Vec<Warning>), Status> {
        Config::from_env_with(&self.variables)
            .map_err(|error| Status::new(Code::InvalidArgument, error.problems.join("\n")))
    }

    pub(crate) fn set_variable(&mut self, name: &str, value: &str) {
        self.variables.insert(name.to_owned(), value.to_owned());
    }

    pub(crate) fn set_metrics(&mut self, more: Option<MoreMetrics>) {
        self.program_page.metrics = more;
    }

    pub(crate) fn set_awaited(&mut self, more: Option<MoreAwaited>) {
        self.program_page.awaited = more;
    }

    /// What C adds to the metrics page.
    pub(crate) fn program_page(&self) -> ProgramPage {
        self.program_page.clone()
    }

    /// Lets C prepare an engine that serves nobody yet.
    pub(crate) fn prepare(&self, engine: &CEngine) -> Result<(), Status> {
        let Some(CPrepare { prepare, user }) = self.prepare.as_deref() else {
            return Ok(());
        };
        let status = calling_back(|| prepare(user.pointer(), engine));
        // SAFETY: a status that the callback returns is the engine's.
        unsafe { CStatus::outcome(status) }
    }

    pub(crate) fn engine_options(&self, config: &Config) -> EngineOptions {
        let mut options = EngineOptions::from_config(config, self.task.clone(), self.num_tasks);
        options.listen = self.listen;
        options.lends_shards = self.lends_shards;
        options.policy.tasks.clone_from(&self.hosts);
        options.devices.clone_from(&self.devices);
        options.service = self
            .service
            .as_ref()
            .map(|service| Arc::clone(service) as Arc<dyn Service>);
        options
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn grpcxx_options_new() -> *mut COptions {
    guarded(ptr::null_mut(), || Box::into_raw(Box::default()))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_options_free(options: *mut COptions) {
    // SAFETY: NULL or owned by the caller.
    unsafe { free(options) };
}

/// Changes options.
///
/// # Safety
/// `options` is NULL, or alive and used by this thread alone.
pub(crate) unsafe fn change(
    options: *mut COptions,
    code: impl FnOnce(&mut COptions) -> Result<(), Status>,
) -> *mut CStatus {
    // SAFETY: stated by the caller.
    reporting(|| match unsafe { options.as_mut() } {
        Some(options) => code(options),
        None => Err(invalid("options is NULL")),
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_options_set_task(
    options: *mut COptions,
    job: *const c_char,
    job_size: usize,
    task_index: u32,
) -> *mut CStatus {
    // SAFETY: the header says what each pointer is.
    unsafe {
        change(options, |options| {
            let job = text("job", job, job_size)?;
            if job.is_empty() {
                return Err(invalid("job is empty; give the name of the task's job"));
            }
            options.task = TaskId::new(job, task_index);
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_options_set_num_tasks(
    options: *mut COptions,
    num_tasks: usize,
) -> *mut CStatus {
    // SAFETY: the header says what each pointer is.
    unsafe {
        change(options, |options| {
            if num_tasks == 0 {
                return Err(invalid("num_tasks is 0; a cluster has at least one task"));
            }
            options.num_tasks = num_tasks;
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_options_set_lends_shards(
    options: *mut COptions,
    lends: bool,
) -> *mut CStatus {
    // SAFETY: the header says what the pointer is.
    unsafe {
        change(options, |options| {
            options.lends_shards = Some(lends);
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_options_add_task(
    options: *mut COptions,
    address: *const c_char,
    address_size: usize,
) -> *mut CStatus {
    // SAFETY: the header says what each pointer is.
    unsafe {
        change(options, |options| {
            let address = text("address", address, address_size)?;
            let host = host_of(address).ok_or_else(|| {
                invalid(format!(
                    "\"{address}\" is no address of a task; write host:port"
                ))
            })?;
            options.hosts.push(host.to_owned());
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_options_set_listen(
    options: *mut COptions,
    address: *const c_char,
    address_size: usize,
) -> *mut CStatus {
    // SAFETY: the header says what each pointer is.
    unsafe {
        change(options, |options| {
            let address = text("address", address, address_size)?;
            options.listen = if address.is_empty() {
                None
            } else {
                Some(listen_address(address)?)
            };
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_options_set_variable(
    options: *mut COptions,
    name: *const c_char,
    name_size: usize,
    value: *const c_char,
    value_size: usize,
) -> *mut CStatus {
    // SAFETY: the header says what each pointer is.
    unsafe {
        change(options, |options| {
            let name = text("name", name, name_size)?;
            let value = text("value", value, value_size)?;
            options.set_variable(name, value);
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_options_add_device(
    options: *mut COptions,
    name: *const c_char,
    name_size: usize,
    kind: *const c_char,
    kind_size: usize,
    incarnation: u64,
    memory_limit_bytes: i64,
) -> *mut CStatus {
    // SAFETY: the header says what each pointer is.
    unsafe {
        change(options, |options| {
            options.devices.push(Device {
                name: text("name", name, name_size)?.to_owned(),
                device_type: text("type", kind, kind_size)?.to_owned(),
                incarnation,
                memory_limit_bytes,
            });
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_options_set_service(
    options: *mut COptions,
    service: Option<ServiceFn>,
    user: *mut c_void,
    free_user: Option<extern "C" fn(*mut c_void)>,
) -> *mut CStatus {
    // SAFETY: the header says what each pointer is.
    unsafe {
        change(options, |options| {
            options.service = service
                .map(|service| Arc::new(CService::new(service, Owned::new(user, free_user))));
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_options_set_prepare(
    options: *mut COptions,
    prepare: Option<PrepareFn>,
    user: *mut c_void,
    free_user: Option<extern "C" fn(*mut c_void)>,
) -> *mut CStatus {
    // SAFETY: the header says what each pointer is.
    unsafe {
        change(options, |options| {
            options.prepare = prepare.map(|prepare| {
                let user = Owned::new(user, free_user);
                Arc::new(CPrepare { prepare, user })
            });
            Ok(())
        })
    }
}
