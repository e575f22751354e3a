//! Collective operations between tasks: all-reduce, broadcast, gather and the like.
//!
//! A program that starts an engine joins a [`Group`] with it, as one of its ranks. All ranks then
//! call the same operations in the same order, and each gets its result: of a reduction the same
//! bits on all ranks, since each chunk is combined in the order of the ranks by one owner.
//!
//! ```
//! use grpcxx_collectives::{Group, ReduceOp};
//! use grpcxx_rpc::Tensor;
//! use grpcxx_runtime::Engine;
//!
//! let engines = [0, 1].map(|_| Engine::builder().listen("127.0.0.1:0").start().unwrap());
//! let first = engines[0].local_addr().unwrap().to_string();
//! let threads = [0, 1].map(|rank| {
//!     let joining = Group::builder(rank, 2, first.clone()).begin(&engines[rank as usize]);
//!     std::thread::spawn(move || {
//!         let group = joining?.wait()?;
//!         let mine = Tensor::vector(vec![rank as f32, 1.0]);
//!         let sum = group.all_reduce(mine, ReduceOp::Sum).wait()?;
//!         assert_eq!(sum.elements::<f32>()?[..], [1.0, 2.0]);
//!         group.leave()
//!     })
//! });
//! threads.into_iter().try_for_each(|thread| thread.join().unwrap())?;
//! # Ok::<(), grpcxx_rpc::Status>(())
//! ```
//!
//! Inside, `plan` says who sends what to whom, `machine` is one operation of one rank without I/O,
//! `member` carries its messages over an engine, `boards` is what ranks of one host have in place
//! of short ones, `way` tells which of these arrays take, `join` is how ranks find each other, by
//! the `meeting` at rank 0, and `roll` is what they tell each other there.
#![forbid(unsafe_code)]

mod boards;
mod bucket;
mod description;
mod dtype;
mod fold;
mod group;
mod join;
mod machine;
mod meeting;
mod member;
mod operation;
mod operator;
mod place;
mod plan;
mod roll;
mod way;

pub use dtype::ReduceOp;
pub use group::{Group, GroupBuilder, JoiningGroup, Operations};
pub use operation::Operation;
pub use operator::Operator;
