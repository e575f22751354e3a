//! Who started this process beside which others, and how they find each other: what launchers put
//! into the environment, the rendezvous of all ranks, and what each of them is given.

mod allocation;
mod answer;
mod children;
mod cpus;
mod environment;
mod error;
mod found;
mod gang;
mod hosts;
mod kubernetes;
mod launchers;
mod leader_worker_set;
mod meeting;
mod member;
mod message;
mod mpi;
mod plan;
mod prrte;
mod reaper;
mod rendezvous;
mod roles;
mod slurm;
mod tf_config;
mod world;

pub use allocation::{Allocation, Launcher, Leader};
pub use children::{Child, Children};
pub use cpus::CpuShare;
pub use environment::{Environment, RANKS_MAX};
pub use error::LaunchError;
pub use found::{Found, Place, Told};
pub use gang::{Decision, End, EndKind, Gang};
pub use launchers::find;
pub use meeting::{Meeting, MeetingOptions};
pub use member::Member;
pub use message::Order;
pub use plan::{Address, Plan};
pub use rendezvous::{Rendezvous, lead};
pub use roles::Roles;
