//! How a process of an allocation finds all others: it takes its ports, leads the rendezvous if it
//! is rank 0, and goes there.

use std::net::{IpAddr, Ipv4Addr};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Allocation, Gang, LaunchError, Member, Plan, Rendezvous, Roles, lead};
use crate::local::{HeldPort, held_ports};

/// What people ask for beside what the environment says.
#[derive(Clone, Debug)]
pub struct MeetingOptions {
    /// The number of ranks, where no launcher says it.
    pub size: Option<u32>,
    /// How many of them are parameter servers; all if left out.
    pub ps: Option<u32>,
    /// Whether the first of the others is the chief.
    pub has_chief: bool,
    /// `host:port` of the rendezvous, where no launcher says it.
    pub rendezvous: Option<String>,
    /// How long ranks wait for each other.
    pub timeout: Duration,
    /// How often the job is started again; `None` if nobody watches over it after the meeting.
    pub restarts: Option<u32>,
}

/// A process that knows all others.
#[derive(Debug)]
pub struct Meeting {
    /// The own rank.
    pub rank: u32,
    /// All tasks.
    pub plan: Plan,
    /// The line to rank 0.
    pub member: Member,
    /// The thread that leads, in rank 0.
    pub leader: Option<JoinHandle<()>>,
    /// The ports of this rank, which nobody else on its host gets meanwhile.
    pub held: Vec<HeldPort>,
}

impl Meeting {
    /// Meets all ranks of the allocation.
    ///
    /// # Errors
    /// What the environment and the options say does not fit, or a rank does not come.
    pub fn hold(allocation: &Allocation, options: &MeetingOptions) -> Result<Self, LaunchError> {
        let size = allocation.size(options.size)?;
        let roles = Roles::new(size, options.ps.unwrap_or(size), options.has_chief)?;
        let rendezvous = Rendezvous {
            address: allocation.rendezvous(options.rendezvous.as_deref())?,
            job: allocation.job.clone(),
            size,
            timeout: options.timeout,
        };
        let held = held_ports(2, IpAddr::V4(Ipv4Addr::UNSPECIFIED))
            .map_err(LaunchError::system("find free ports"))?;
        let ports = [held[0].number(), held[1].number()];
        let gang = options.restarts.map(|restarts| Gang::new(roles, restarts));
        let leader = match allocation.rank {
            0 => Some(lead(&rendezvous, gang)?),
            _ => None,
        };
        let member = Member::join(&rendezvous, allocation.rank, ports)?;
        let plan =
            Plan::new(roles, member.addresses().to_vec()).ok_or_else(|| LaunchError::Refused {
                address: rendezvous.address,
                reason: "it knows another number of ranks".to_owned(),
            })?;
        Ok(Self {
            rank: allocation.rank,
            plan,
            member,
            leader,
            held,
        })
    }
}
