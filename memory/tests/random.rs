//! Random lives of buffers on several threads: each buffer keeps the pattern that was written into
//! it, so two that overlap give each other away, and at the end all memory is back.
//!
//! A failure prints its inputs; `PROPTEST_RNG_SEED` repeats a run.
#![cfg(not(loom))]

use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use grpcxx_memory::{Arena, ArenaOptions, Buffer, BufferMut};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Allocate {
        len: usize,
    },
    /// Memory for announced bytes, of which a part is there.
    Reserve {
        whole_len: usize,
        len: usize,
    },
    Grow {
        pick: usize,
        len: usize,
    },
    Truncate {
        pick: usize,
        len: usize,
    },
    Freeze {
        pick: usize,
    },
    Clone {
        pick: usize,
    },
    Slice {
        pick: usize,
        first: usize,
        len: usize,
    },
    Thaw {
        pick: usize,
    },
    Drop {
        pick: usize,
    },
    /// To another thread, which drops it after a while.
    Send {
        pick: usize,
    },
    Reclaim,
    Trim,
}

/// A buffer and what must be in it: the bytes `pattern(seed, first + i)`.
struct Known<B> {
    buffer: B,
    seed: u8,
    first: usize,
}

type Shared = Known<Buffer>;
type Unique = Known<BufferMut>;

fn pattern(seed: u8, index: usize) -> u8 {
    seed.wrapping_add((index % 251) as u8)
}

impl<B: AsRef<[u8]>> Known<B> {
    fn check(&self) {
        let bytes = self.buffer.as_ref().iter().enumerate();
        for (index, &byte) in bytes {
            assert_eq!(
                byte,
                pattern(self.seed, self.first + index),
                "byte {index} was overwritten"
            );
        }
    }
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![
        4 => 0usize..300,
        2 => 1000usize..5000,
        1 => 5000usize..40_000,
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    let pick = any::<u16>().prop_map(usize::from);
    prop_oneof![
        6 => lengths().prop_map(|len| Step::Allocate { len }),
        3 => (lengths(), lengths()).prop_map(|(len, more)| Step::Reserve { whole_len: 1 + len + 8 * more, len: 1 + len }),
        4 => (pick.clone(), lengths()).prop_map(|(pick, len)| Step::Grow { pick, len }),
        1 => (pick.clone(), lengths()).prop_map(|(pick, len)| Step::Truncate { pick, len }),
        4 => pick.clone().prop_map(|pick| Step::Freeze { pick }),
        2 => pick.clone().prop_map(|pick| Step::Clone { pick }),
        3 => (pick.clone(), lengths(), lengths()).prop_map(|(pick, first, len)| Step::Slice { pick, first, len }),
        1 => pick.clone().prop_map(|pick| Step::Thaw { pick }),
        4 => pick.clone().prop_map(|pick| Step::Drop { pick }),
        4 => pick.prop_map(|pick| Step::Send { pick }),
        1 => Just(Step::Reclaim),
        1 => Just(Step::Trim),
    ]
}

/// Runs the steps on the thread that owns the arena.
struct Model {
    arena: Arena,
    unique: Vec<Unique>,
    /// With the lengths that they shall have in the end.
    announced: Vec<(Unique, usize)>,
    shared: Vec<Shared>,
    next_seed: u8,
    refused: u64,
}

impl Model {
    fn apply(&mut self, step: Step, others: &[Sender<Shared>]) {
        match step {
            Step::Allocate { len } => self.allocate(len),
            Step::Reserve { whole_len, len } => self.reserve(whole_len, len),
            Step::Grow { pick, len } => self.grow(pick, len),
            Step::Truncate { pick, len } => {
                if let Some(index) = index(pick, &self.unique) {
                    self.unique[index].buffer.truncate(len);
                }
            }
            Step::Freeze { pick } => {
                if let Some(index) = index(pick, &self.unique) {
                    let known = self.unique.swap_remove(index);
                    known.check();
                    self.shared.push(Known {
                        buffer: known.buffer.freeze(),
                        seed: known.seed,
                        first: known.first,
                    });
                }
            }
            Step::Clone { pick } => self.derive(pick, 0, usize::MAX),
            Step::Slice { pick, first, len } => self.derive(pick, first, len),
            Step::Thaw { pick } => self.thaw(pick),
            Step::Drop { pick } => {
                if pick % 2 == 0 && !self.unique.is_empty() {
                    let index = pick % self.unique.len();
                    self.unique.swap_remove(index).check();
                } else if let Some(index) = index(pick, &self.shared) {
                    self.shared.swap_remove(index).check();
                }
            }
            Step::Send { pick } => {
                if let Some(index) = index(pick, &self.shared) {
                    let known = self.shared.swap_remove(index);
                    others[pick % others.len()]
                        .send(known)
                        .expect("the other thread listens");
                }
            }
            Step::Reclaim => {
                self.arena.reclaim();
            }
            Step::Trim => {
                self.arena.trim();
            }
        }
    }

    fn allocate(&mut self, len: usize) {
        let Ok(mut buffer) = self.arena.allocate(len) else {
            self.refused += 1;
            return;
        };
        assert_eq!(buffer.len(), len);
        let seed = self.fill(&mut buffer);
        self.unique.push(Known {
            buffer,
            seed,
            first: 0,
        });
    }

    fn fill(&mut self, buffer: &mut BufferMut) -> u8 {
        let seed = self.next_seed;
        self.next_seed = self.next_seed.wrapping_add(37);
        for (index, byte) in buffer.iter_mut().enumerate() {
            *byte = pattern(seed, index);
        }
        seed
    }

    fn reserve(&mut self, whole_len: usize, len: usize) {
        let before = self.arena.statistics().failed_allocations;
        let Some(mut buffer) = self.arena.reserve(whole_len, len) else {
            self.refused += self.arena.statistics().failed_allocations - before;
            return;
        };
        assert_eq!(buffer.len(), len);
        let seed = self.fill(&mut buffer);
        let known = Known {
            buffer,
            seed,
            first: 0,
        };
        self.announced.push((known, whole_len));
    }

    /// Lengthens announced memory, which is memory like any other when it is whole.
    fn grow(&mut self, pick: usize, len: usize) {
        let Some(index) = index(pick, &self.announced) else {
            return;
        };
        let (known, whole_len) = self.announced.swap_remove(index);
        known.check();
        let filled = known.buffer.len();
        let len = (filled + len).min(whole_len);
        let Ok(mut buffer) = self.arena.grow(known.buffer, len, whole_len) else {
            self.refused += 1;
            return;
        };
        assert!((len..=whole_len).contains(&buffer.len()));
        for (index, byte) in buffer.iter_mut().enumerate().skip(filled) {
            *byte = pattern(known.seed, index);
        }
        let known = Known { buffer, ..known };
        known.check();
        if known.buffer.len() == whole_len {
            self.unique.push(known);
        } else {
            self.announced.push((known, whole_len));
        }
    }

    fn derive(&mut self, pick: usize, first: usize, len: usize) {
        if let Some(index) = index(pick, &self.shared) {
            let known = &self.shared[index];
            let first = first.min(known.buffer.len());
            let end = first.saturating_add(len).min(known.buffer.len());
            let part = Known {
                buffer: known.buffer.slice(first..end),
                seed: known.seed,
                first: known.first + first,
            };
            self.shared.push(part);
        }
    }

    fn thaw(&mut self, pick: usize) {
        if let Some(index) = index(pick, &self.shared) {
            let Known {
                buffer,
                seed,
                first,
            } = self.shared.swap_remove(index);
            match buffer.try_into_mut() {
                Ok(mut buffer) => {
                    let seed = seed ^ 0x55;
                    for (index, byte) in buffer.iter_mut().enumerate() {
                        *byte = pattern(seed, first + index);
                    }
                    self.unique.push(Known {
                        buffer,
                        seed,
                        first,
                    });
                }
                Err(buffer) => self.shared.push(Known {
                    buffer,
                    seed,
                    first,
                }),
            }
        }
    }
}

fn index<T>(pick: usize, list: &[T]) -> Option<usize> {
    pick.checked_rem(list.len())
}

/// Keeps a few buffers, clones them now and then, and drops them in another order than they came.
fn keep_and_drop(incoming: Receiver<Shared>) {
    let mut kept = Vec::new();
    for (count, known) in incoming.into_iter().enumerate() {
        kept.push(Known {
            buffer: known.buffer.clone(),
            ..known
        });
        kept.push(known);
        if kept.len() > 8 {
            kept.swap_remove(count % 7).check();
            kept.swap_remove(count % 5).check();
        }
    }
    kept.iter().for_each(Known::check);
}

fn run(capacity_bytes: usize, drop_arena_first: bool, steps: Vec<Step>) {
    let arena = Arena::new(ArenaOptions::default().with(|options| {
        options.capacity_bytes = capacity_bytes;
        options.huge_pages = false;
    }))
    .expect("address space");
    let mut model = Model {
        arena,
        unique: Vec::new(),
        announced: Vec::new(),
        shared: Vec::new(),
        next_seed: 1,
        refused: 0,
    };
    let (arena, unique, shared) = thread::scope(|scope| {
        let mut others = Vec::new();
        for _ in 0..2 {
            let (sender, receiver) = mpsc::channel();
            others.push(sender);
            scope.spawn(move || keep_and_drop(receiver));
        }
        for step in steps {
            model.apply(step, &others);
        }
        assert_eq!(model.arena.statistics().failed_allocations, model.refused);
        model.announced.iter().for_each(|(known, _)| known.check());
        // Maybe while the other threads still hold and drop buffers.
        let arena = (!drop_arena_first).then_some(model.arena);
        drop(model.announced);
        (arena, model.unique, model.shared)
    });
    unique.iter().for_each(Known::check);
    shared.iter().for_each(Known::check);
    drop((unique, shared));
    if let Some(mut arena) = arena {
        arena.reclaim();
        let statistics = arena.statistics();
        assert_eq!((statistics.blocks, statistics.in_use_bytes), (0, 0));
        assert_eq!(statistics.reserved_bytes, 0);
        arena.trim();
        let whole = arena.allocate(capacity_bytes);
        assert!(whole.is_ok(), "everything grew together again");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 200 })
    })]

    #[test]
    fn buffers_live_any_life(
        capacity_log2 in 15u32..21,
        drop_arena_first: bool,
        steps in prop::collection::vec(steps(), 0..if cfg!(miri) { 40 } else { 600 }),
    ) {
        run(1 << capacity_log2, drop_arena_first, steps);
    }
}
