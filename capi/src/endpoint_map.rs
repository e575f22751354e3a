#![expect(unsafe_code, reason = "exported functions over pointers")]
//! `grpcxx_endpoint_map`.

use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::path::Path;
use std::ptr;

use grpcxx_rpc::{Code, Status};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::endpoint_map::{EndpointMap, EndpointMapError, search};

use crate::boundary::{free, handle, not_null, put, text};
use crate::status::{CStatus, c_string, reporting};

/// A map as C holds it.
pub(crate) struct CEndpointMap {
    path: CString,
    entries: Vec<(CString, CString)>,
    addresses: HashMap<String, Result<CString, String>>,
}

impl CEndpointMap {
    fn read(path: &str) -> Result<Self, Status> {
        let explicit = (!path.is_empty()).then(|| Path::new(path));
        let directory = std::env::var_os(DIRECTORY).filter(|directory| !directory.is_empty());
        let path = search(explicit, directory.as_deref().map(Path::new));
        let map = EndpointMap::read(&path).map_err(|error| status_of_error(&error))?;
        // The task is for texts only, and the caller's addresses name it better.
        let nobody = TaskId::new("task", 0);
        let addresses = map
            .entries()
            .iter()
            .map(|entry| {
                let found = map
                    .star_address(&nobody, &entry.key)
                    .map(|star| c_string(&format!("{}:{}", star.host, star.port)))
                    .map_err(|error| error.to_string());
                (entry.key.clone(), found)
            })
            .collect();
        Ok(Self {
            path: c_string(&map.path().display().to_string()),
            entries: map
                .entries()
                .iter()
                .map(|entry| (c_string(&entry.key), c_string(&entry.value)))
                .collect(),
            addresses,
        })
    }

    fn star_address(&self, grpc_address: &str) -> Result<&CString, Status> {
        match self.addresses.get(grpc_address) {
            Some(Ok(address)) => Ok(address),
            Some(Err(fault)) => Err(Status::new(Code::InvalidArgument, fault.clone())),
            None => Err(Status::new(
                Code::NotFound,
                format!(
                    "{}: there is no entry for {grpc_address}; add a line \"{grpc_address}=host:port\", or write \
                     the address in the cluster exactly as in the map",
                    self.path.to_string_lossy()
                ),
            )),
        }
    }
}

fn status_of_error(error: &EndpointMapError) -> Status {
    let code = match error {
        EndpointMapError::Missing { .. } => Code::NotFound,
        EndpointMapError::Unreadable { .. } => Code::PermissionDenied,
        EndpointMapError::Wrong { .. } => Code::InvalidArgument,
    };
    Status::new(code, error.to_string())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_endpoint_map_new(
    path: *const c_char,
    path_size: usize,
    map: *mut *mut CEndpointMap,
) -> *mut CStatus {
    reporting(|| {
        not_null("map", map)?;
        // SAFETY: the header says what each pointer is.
        unsafe {
            let read = CEndpointMap::read(text("path", path, path_size)?)?;
            map.write(Box::into_raw(Box::new(read)));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_endpoint_map_free(map: *mut CEndpointMap) {
    // SAFETY: NULL or owned by the caller.
    unsafe { free(map) };
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_endpoint_map_path(
    map: *const CEndpointMap,
) -> *const c_char {
    // SAFETY: NULL or alive.
    unsafe { map.as_ref() }.map_or(ptr::null(), |map| map.path.as_ptr())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_endpoint_map_size(map: *const CEndpointMap) -> usize {
    // SAFETY: NULL or alive.
    unsafe { map.as_ref() }.map_or(0, |map| map.entries.len())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_endpoint_map_entry(
    map: *const CEndpointMap,
    index: usize,
    value: *mut *const c_char,
) -> *const c_char {
    // SAFETY: NULL or alive.
    let entry = unsafe { map.as_ref() }.and_then(|map| map.entries.get(index));
    // SAFETY: NULL or writable.
    unsafe {
        put(
            value,
            entry.map_or(ptr::null(), |(_, value)| value.as_ptr()),
        )
    };
    entry.map_or(ptr::null(), |(key, _)| key.as_ptr())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_endpoint_map_star_address(
    map: *const CEndpointMap,
    grpc_address: *const c_char,
    grpc_address_size: usize,
    star_address: *mut *const c_char,
) -> *mut CStatus {
    reporting(|| {
        not_null("star_address", star_address)?;
        // SAFETY: the header says what each pointer is.
        unsafe {
            let map = handle("map", map)?;
            let address = text("grpc_address", grpc_address, grpc_address_size)?;
            star_address.write(map.star_address(address)?.as_ptr());
        }
        Ok(())
    })
}

/// Where DeepRec looks for the map.
const DIRECTORY: &str = "TF_SEASTAR_ENDPOINT_MAP_PATH";
