#![expect(unsafe_code, reason = "forks, waits for the child and ends it")]

use std::io::{Read, Write};

use rustix::pipe::PipeFlags;

use super::*;
use crate::{Arena, ArenaOptions, Buffer};

/// Runs code in a child, and `meanwhile` here, after which the child goes on with what it was
/// told by the reader. Returns whether both say yes.
fn fork(child: impl FnOnce(File) -> bool, meanwhile: impl FnOnce(File) -> bool) -> bool {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
    // SAFETY: the child allocates and makes system calls only, and ends without returning.
    let process = unsafe { libc::fork() };
    if process == 0 {
        drop(writer);
        let is_well = child(File::from(reader));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if is_well { 0 } else { 1 }) };
    }
    assert!(process > 0);
    drop((child, reader));
    let is_well = meanwhile(File::from(writer));
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    let ended = unsafe { libc::waitpid(process, &raw mut status, 0) };
    assert_eq!(ended, process);
    is_well && status == 0
}

fn shared_arena() -> Arena {
    let options = ArenaOptions::default().with(|options| {
        options.capacity_bytes = 64 << 20;
        options.shared = true;
    });
    Arena::new(options).unwrap()
}

fn filled(arena: &mut Arena, len: usize, byte: u8) -> Buffer {
    let mut memory = arena.allocate(len).unwrap();
    memory.fill(byte);
    memory.freeze()
}

#[test]
fn what_a_user_got_is_the_childs_own() {
    for len in [100, 4096, 5 << 20] {
        let mut arena = shared_arena();
        let buffer = filled(&mut arena, len, 1);
        buffer.expose();
        let place = buffer.as_ptr().addr();
        let copy = buffer.clone();
        let child = move |mut told: File| {
            let is_lent = copy.shared_memory().is_some();
            // The parent has used the memory for something else by now.
            let _ = told.read(&mut [0]);
            let is_same = copy.iter().all(|&byte| byte == 1);
            let mut memory = copy.try_into_mut();
            if let Ok(memory) = &mut memory {
                memory.fill(7);
            }
            is_same && !is_lent
        };
        let meanwhile = |mut tell: File| {
            drop(buffer);
            let again = filled(&mut arena, len, 9);
            assert_eq!(again.as_ptr().addr(), place, "the memory is used again");
            tell.write_all(&[1]).unwrap();
            drop(tell);
            std::thread::sleep(std::time::Duration::from_millis(20));
            again.iter().all(|&byte| byte == 9)
        };
        assert!(fork(child, meanwhile), "{len}");
    }
}

#[test]
fn own_descriptors_lead_nowhere_in_a_child() {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).unwrap();
    let number = writer.as_raw_fd();
    let own = OwnFd::from(writer);
    let before = generation();
    let child = |mut told: File| {
        let _ = told.read(&mut [0]);
        let path = std::fs::read_link(format!("/proc/self/fd/{number}"));
        path.is_ok_and(|path| path.as_os_str() == "/dev/null") && generation() == before + 1
    };
    let meanwhile = |tell: File| {
        drop(own);
        // The end comes although the child lives.
        let ended = File::from(reader).read(&mut [0]).unwrap() == 0;
        drop(tell);
        ended && generation() == before
    };
    assert!(fork(child, meanwhile));
}

#[test]
fn each_process_makes_a_value_of_its_own_from_its_parents() {
    static VALUES: PerProcess<Mutex<u32>> = PerProcess::new();
    let after = |parents: Option<&Mutex<u32>>| match parents.map(|parents| parents.try_lock()) {
        None => Mutex::new(1),
        // What somebody holds at the fork.
        Some(Err(_)) => Mutex::new(2),
        Some(Ok(_)) => Mutex::new(3),
    };
    let value = move || *VALUES.get_or_make(after).lock().unwrap();
    assert!(VALUES.get().is_none());
    assert_eq!(value(), 1);
    let held = VALUES.get().unwrap().lock().unwrap();
    let child = move |_| {
        let is_own = VALUES.get().is_none() && value() == 2;
        is_own && value() == 2 && fork(move |_| value() == 3, |_| true) && value() == 2
    };
    assert!(fork(child, |_| true));
    drop(held);
    assert_eq!(value(), 1);
}
