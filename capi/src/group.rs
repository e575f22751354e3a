#![expect(unsafe_code, reason = "exported functions over pointers")]
//! `grpcxx_group`: operations on the tensors of all ranks.

use std::ffi::{c_char, c_void};
use std::ptr::{self, NonNull};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use grpcxx_collectives::{Group, Operator, ReduceOp};
use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_rpc::{Code, Status, Tensor};

use crate::boundary::{CText, Owned, free, handle, invalid, not_null, sized, text};
use crate::engine::CEngine;
use crate::flight::Released;
use crate::notices::may_block;
use crate::status::{CStatus, reporting};
use crate::tensor::{CTensor, Landed, give};

/// One rank of a group as C holds it.
pub(crate) struct CGroup {
    group: Mutex<Option<Group>>,
    rank: u32,
    size: u32,
    /// Whether the membership ends with the handle.
    leaves: bool,
}

/// `grpcxx_group_options`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct CGroupOptions {
    pub(crate) struct_size: usize,
    pub(crate) name: CText,
    pub(crate) address: CText,
    pub(crate) generation: u64,
    pub(crate) timeout_ms: u64,
    pub(crate) join_timeout_ms: u64,
}

/// `grpcxx_output`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct COutput {
    pub(crate) struct_size: usize,
    pub(crate) data: *mut c_void,
    pub(crate) size: usize,
    pub(crate) release: Option<extern "C" fn(*mut c_void)>,
    pub(crate) context: *mut c_void,
}

impl Default for COutput {
    fn default() -> Self {
        Self {
            struct_size: 0,
            data: ptr::null_mut(),
            size: 0,
            release: None,
            context: ptr::null_mut(),
        }
    }
}

/// Where C wants the result of an operation.
struct Place {
    start: NonNull<u8>,
    size: usize,
    /// Takes the memory back. Without it the result is copied there when the operation has ended.
    release: Option<Released>,
}

/// A handle for C of a group that belongs to a program in another language: the group goes on when
/// the handle ends.
pub fn handle_of(group: &Group) -> usize {
    Box::into_raw(Box::new(CGroup::new(group.clone(), false))).expose_provenance()
}

impl CGroup {
    fn new(group: Group, leaves: bool) -> Self {
        Self {
            rank: group.rank(),
            size: group.size(),
            group: Mutex::new(Some(group)),
            leaves,
        }
    }

    fn take(&self) -> Option<Group> {
        let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        group.take()
    }

    fn open(&self) -> Result<Group, Status> {
        let group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        group.clone().ok_or_else(|| {
            let text = "this rank has left the group";
            Status::new(Code::FailedPrecondition, text)
        })
    }

    /// The group for operations under a tag. The ranks use the last one before the group begins.
    fn tagged(&self, tag: u16) -> Result<Group, Status> {
        if tag == u16::MAX {
            return Err(invalid("the tag is 65535; tags go from 0 to 65534"));
        }
        Ok(self.open()?.with_tag(tag))
    }
}

impl Drop for CGroup {
    fn drop(&mut self) {
        if let (true, Some(group)) = (self.leaves, self.take()) {
            group.leave_without_waiting();
        }
    }
}

impl Place {
    /// # Safety
    /// As the header says.
    unsafe fn of(output: *const COutput) -> Result<Option<Self>, Status> {
        // SAFETY: stated by the caller.
        let output = unsafe { sized("output", output) }?;
        let owned = |release| Released(Owned::new(output.context, Some(release)));
        let release = output.release.map(owned);
        match NonNull::new(output.data.cast()) {
            Some(start) => Ok(Some(Self {
                start,
                size: output.size,
                release,
            })),
            None if output.size == 0 => Ok(None),
            None => Err(invalid(format!(
                "data of output is NULL, but has {} bytes",
                output.size
            ))),
        }
    }

    /// Whether the operation can write its result here. Refuses memory of another size than the
    /// result has, if this rank gets one.
    fn takes(&self, group: &Group, operator: Operator, tensor: &Tensor) -> Result<bool, Status> {
        let output = group.output(operator, tensor)?;
        let wanted = match (&output, operator) {
            (Some((_, bytes)), _) => *bytes,
            (None, Operator::Broadcast { .. }) => tensor.data.len() as u64,
            (None, _) => return Ok(false),
        };
        // The operation itself refuses what are no numbers.
        let has_size = tensor.dtype.element_bytes().is_some();
        if has_size && (self.size as u64 != wanted || self.size > isize::MAX as usize) {
            let (size, dtype) = (self.size, tensor.dtype);
            return Err(invalid(format!(
                "output has {size} bytes, but the result, of {dtype}, has {wanted}"
            )));
        }
        Ok(output.is_some())
    }

    /// The memory itself, if C says with a function when it is free again.
    fn memory(&mut self, tensor: &mut Tensor) -> Option<BufferMut> {
        let release = self.release.take()?;
        if tensor.data.overlaps(self.start.as_ptr(), self.size) {
            tensor.data = Buffer::from(tensor.data.to_vec());
        }
        // SAFETY: C lends so many bytes there to the engine alone until `release` is called; what
        // somebody else's code has allocated counts as initialised.
        Some(unsafe { BufferMut::from_foreign(self.start, self.size, Box::new(release)) })
    }

    /// The result as C has it, which lies here.
    fn fill(&self, found: Tensor) -> CTensor {
        if found.data.as_ptr() != self.start.as_ptr() {
            // SAFETY: the result has as many bytes as the place, as was checked, and they may
            // overlap.
            unsafe {
                ptr::copy(found.data.as_ptr(), self.start.as_ptr(), found.data.len());
            }
        }
        CTensor::landed(found, Landed::at(self.start.as_ptr(), self.size))
    }
}

fn run(
    group: &Group,
    operator: Operator,
    mut tensor: Tensor,
    place: Option<Place>,
) -> Result<Option<CTensor>, Status> {
    let Some(mut place) = place else {
        let found = group.run(operator, tensor, None).wait()?;
        return Ok(found.map(CTensor::new));
    };
    let takes = place.takes(group, operator, &tensor);
    let memory = match takes.inspect_err(|_| group.refuse())? {
        true => place.memory(&mut tensor),
        false => None,
    };
    let found = group.run(operator, tensor, memory).wait()?;
    Ok(found.map(|found| place.fill(found)))
}

/// The body of the functions that do something with the tensors of all ranks.
///
/// # Safety
/// As the header says.
unsafe fn collective(
    function: &str,
    (group, tag): (*const CGroup, u16),
    tensor: *const CTensor,
    operator: Result<Operator, Status>,
    output: *const COutput,
    result: *mut *const CTensor,
) -> *mut CStatus {
    reporting(|| {
        // SAFETY: stated by the caller. Memory with a function is given back whatever fails.
        let place = unsafe { Place::of(output) };
        may_block(function)?;
        // SAFETY: as above.
        let group = unsafe { handle("group", group) }?.tagged(tag)?;
        let brought = || {
            // SAFETY: as above.
            let tensor = unsafe { handle("tensor", tensor) }?;
            Ok((operator?, tensor.to_tensor()?, place?))
        };
        let brought: Result<_, Status> = brought();
        let (operator, tensor, place) = brought.inspect_err(|_| group.refuse())?;
        let found = run(&group, operator, tensor, place)?;
        if !result.is_null() {
            match found {
                // SAFETY: writable.
                Some(found) => unsafe { give(result, found) },
                // SAFETY: as above.
                None => unsafe { result.write(ptr::null()) },
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_group_join(
    engine: *const CEngine,
    rank: u32,
    size: u32,
    rendezvous: *const c_char,
    rendezvous_size: usize,
    options: *const CGroupOptions,
    group: *mut *mut CGroup,
) -> *mut CStatus {
    reporting(|| {
        may_block("grpcxx_group_join")?;
        not_null("group", group)?;
        // SAFETY: the header says what each pointer is.
        let joining = unsafe {
            let engine = handle("engine", engine)?;
            let options = sized("options", options)?;
            let rendezvous = text("rendezvous", rendezvous, rendezvous_size)?;
            let mut builder = Group::builder(rank, size, rendezvous).generation(options.generation);
            let name = text("name", options.name.data, options.name.size)?;
            let address = text("address", options.address.data, options.address.size)?;
            if !name.is_empty() {
                builder = builder.name(name);
            }
            if !address.is_empty() {
                builder = builder.address(address);
            }
            if options.timeout_ms > 0 {
                builder = builder.timeout(Duration::from_millis(options.timeout_ms));
            }
            if options.join_timeout_ms > 0 {
                builder = builder.join_timeout(Duration::from_millis(options.join_timeout_ms));
            }
            engine.with(|engine| builder.begin(engine))?
        };
        // The engine can stop meanwhile, which ends this.
        let joined = CGroup::new(joining.wait()?, true);
        // SAFETY: writable.
        unsafe { group.write(Box::into_raw(Box::new(joined))) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_group_leave(group: *const CGroup) -> *mut CStatus {
    reporting(|| {
        may_block("grpcxx_group_leave")?;
        // SAFETY: NULL or alive.
        match unsafe { handle("group", group) }?.take() {
            Some(group) => group.leave(),
            None => Ok(()),
        }
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_group_free(group: *mut CGroup) {
    // SAFETY: NULL or owned by the caller.
    unsafe { free(group) };
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_group_rank(group: *const CGroup) -> u32 {
    // SAFETY: NULL or alive.
    unsafe { group.as_ref() }.map_or(0, |group| group.rank)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_group_size(group: *const CGroup) -> u32 {
    // SAFETY: NULL or alive.
    unsafe { group.as_ref() }.map_or(0, |group| group.size)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_group_all_reduce(
    group: *const CGroup,
    tag: u16,
    tensor: *const CTensor,
    op: i32,
    output: *const COutput,
    result: *mut *const CTensor,
) -> *mut CStatus {
    let operator = ReduceOp::from_number(op).map(Operator::AllReduce);
    let function = "grpcxx_group_all_reduce";
    // SAFETY: the header says what each pointer is.
    unsafe { collective(function, (group, tag), tensor, operator, output, result) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_group_reduce_scatter(
    group: *const CGroup,
    tag: u16,
    tensor: *const CTensor,
    op: i32,
    output: *const COutput,
    result: *mut *const CTensor,
) -> *mut CStatus {
    let operator = ReduceOp::from_number(op).map(Operator::ReduceScatter);
    let function = "grpcxx_group_reduce_scatter";
    // SAFETY: the header says what each pointer is.
    unsafe { collective(function, (group, tag), tensor, operator, output, result) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_group_reduce(
    group: *const CGroup,
    tag: u16,
    tensor: *const CTensor,
    op: i32,
    root: u32,
    output: *const COutput,
    result: *mut *const CTensor,
) -> *mut CStatus {
    let operator = ReduceOp::from_number(op).map(|op| Operator::Reduce { op, root });
    let function = "grpcxx_group_reduce";
    // SAFETY: the header says what each pointer is.
    unsafe { collective(function, (group, tag), tensor, operator, output, result) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_group_broadcast(
    group: *const CGroup,
    tag: u16,
    tensor: *const CTensor,
    root: u32,
    output: *const COutput,
    result: *mut *const CTensor,
) -> *mut CStatus {
    let operator = Ok(Operator::Broadcast { root });
    let function = "grpcxx_group_broadcast";
    // SAFETY: the header says what each pointer is.
    unsafe { collective(function, (group, tag), tensor, operator, output, result) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_group_gather(
    group: *const CGroup,
    tag: u16,
    tensor: *const CTensor,
    root: u32,
    output: *const COutput,
    result: *mut *const CTensor,
) -> *mut CStatus {
    let operator = Ok(Operator::Gather { root });
    let function = "grpcxx_group_gather";
    // SAFETY: the header says what each pointer is.
    unsafe { collective(function, (group, tag), tensor, operator, output, result) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_group_scatter(
    group: *const CGroup,
    tag: u16,
    tensor: *const CTensor,
    root: u32,
    output: *const COutput,
    result: *mut *const CTensor,
) -> *mut CStatus {
    let operator = Ok(Operator::Scatter { root });
    let function = "grpcxx_group_scatter";
    // SAFETY: the header says what each pointer is.
    unsafe { collective(function, (group, tag), tensor, operator, output, result) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_group_all_gather(
    group: *const CGroup,
    tag: u16,
    tensor: *const CTensor,
    output: *const COutput,
    result: *mut *const CTensor,
) -> *mut CStatus {
    let (function, operator) = ("grpcxx_group_all_gather", Ok(Operator::AllGather));
    // SAFETY: the header says what each pointer is.
    unsafe { collective(function, (group, tag), tensor, operator, output, result) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_group_all_to_all(
    group: *const CGroup,
    tag: u16,
    tensor: *const CTensor,
    output: *const COutput,
    result: *mut *const CTensor,
) -> *mut CStatus {
    let (function, operator) = ("grpcxx_group_all_to_all", Ok(Operator::AllToAll));
    // SAFETY: the header says what each pointer is.
    unsafe { collective(function, (group, tag), tensor, operator, output, result) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_group_barrier(
    group: *const CGroup,
    tag: u16,
) -> *mut CStatus {
    reporting(|| {
        may_block("grpcxx_group_barrier")?;
        // SAFETY: NULL or alive.
        let group = unsafe { handle("group", group) }?.tagged(tag)?;
        group.barrier().wait()
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn grpcxx_group_refuse(
    group: *const CGroup,
    tag: u16,
) -> *mut CStatus {
    reporting(|| {
        // SAFETY: NULL or alive.
        unsafe { handle("group", group) }?.tagged(tag)?.refuse();
        Ok(())
    })
}
