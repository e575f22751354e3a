//! `grpcxx launch`: runs a program as the tasks of a cluster, on one host or in an allocation.

pub(crate) mod arguments;
mod folder;
mod lines;

use std::ffi::OsString;
use std::process;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use grpcxx_cli::launch::{
    self, Address, Allocation, Child, Children, CpuShare, Decision, Environment, Gang, Meeting,
    MeetingOptions, Order, Place, Plan, Roles, Told,
};
use grpcxx_cli::local::held_ports;
use grpcxx_runtime::proxies;

use self::arguments::{CpuChoice, LaunchArguments, LauncherChoice};
use self::folder::Folder;
use self::lines::Lines;
use crate::terminal::{Exit, Failure, OrExit, Outcome, Signals};

/// Runs the command until all is done, one process has failed, or a signal comes.
pub(crate) fn run(arguments: &LaunchArguments) -> Outcome {
    let signals = Signals::watch()?;
    let place = match arguments.launcher {
        LauncherChoice::Auto => {
            let found = launch::find(&Environment::of_process())?;
            if let Some(line) = found.unused {
                tracing::warn!("{line}");
            }
            found.place
        }
        LauncherChoice::Local => None,
    };
    if let (Some(place), true) = (&place, arguments.token) {
        return Err(Failure::new(
            Exit::Usage,
            format!(
                "--token makes a token on one host, but {} starts processes on several; put a token into a file that all can read, and set GRPCXX_TOKEN_FILE",
                place.launcher()
            ),
        ));
    }
    match place {
        None => run_here(arguments, &signals),
        Some(Place::Told(told)) => run_told(arguments, told, &signals),
        Some(Place::Rank(allocation)) => run_rank(arguments, &allocation, &signals),
    }
}

/// Starts all processes on this host.
fn run_here(arguments: &LaunchArguments, signals: &Signals) -> Outcome {
    let size = arguments.size.unwrap_or(1);
    let roles = Roles::new(size, arguments.ps, arguments.chief)?;
    let held = held_ports(2 * size as usize, LOOPBACK)
        .or_exit_at(Exit::System, || "cannot find free ports".to_owned())?;
    let addresses = held.chunks_exact(2).map(|ports| Address {
        ip: LOOPBACK,
        grpc: ports[0].number(),
        star: ports[1].number(),
    });
    let plan = Plan::new(roles, addresses.collect())
        .ok_or_else(|| Failure::new(Exit::Software, "ports and ranks differ in number"))?;
    let folder = Folder::make(&plan, arguments.token)?;
    let shares = match arguments.cpus {
        CpuChoice::Share if size > 1 => CpuShare::divide(size as usize),
        CpuChoice::Share | CpuChoice::All => None,
    };
    let children = (0..size).map(|rank| Child {
        cpus: shares.as_ref().map(|shares| shares[rank as usize].clone()),
        ..child(arguments, &folder, &plan, rank)
    });
    let children = children.collect();
    let gang = Gang::new(roles, arguments.restarts);
    let outcome = watch(arguments, children, gang, signals);
    // Until here nobody else gets them, also while processes start again.
    drop(held);
    outcome
}

/// Runs the only process of this launcher; the cluster was told, and somebody else looks after the
/// others.
fn run_told(arguments: &LaunchArguments, told: Told, signals: &Signals) -> Outcome {
    told.check_size(arguments.size)?;
    if told.is_alone {
        tracing::warn!("TF_CONFIG has no cluster, so {} runs alone", told.name);
    }
    let gang = Gang::alone(&told.name, arguments.restarts);
    let completed = told
        .tf_config
        .map(|text| ("TF_CONFIG".to_owned(), OsString::from(text)));
    let child = Child {
        rank: 0,
        name: told.name,
        command: arguments.command.clone(),
        environment: completed.into_iter().collect(),
        cpus: None,
    };
    watch(arguments, vec![child], gang, signals)
}

/// Watches over processes that all run here.
fn watch(
    arguments: &LaunchArguments,
    children: Vec<Child>,
    mut gang: Gang,
    signals: &Signals,
) -> Outcome {
    run_children(arguments, children, |children| {
        watch_over(children, &mut gang, signals)
    })
}

fn watch_over(children: &mut Children, gang: &mut Gang, signals: &Signals) -> Outcome {
    let mut restart = 0;
    loop {
        if let Some(signal) = signals.wait(Some(WATCH_INTERVAL)) {
            signal.ends_program();
            return Ok(children.stop()?);
        }
        let now = Instant::now();
        for (rank, end) in children.ended()? {
            gang.ended(rank, restart, &end, now);
        }
        match gang.decide(now) {
            Decision::Continue => {}
            Decision::Restart(number, reason) => {
                tracing::warn!(restart = number, "{reason}");
                restart = number;
                children.stop()?;
                gang.all_stopped();
                children.start_again()?;
            }
            Decision::Finish => return Ok(children.stop()?),
            Decision::Fail(reason) => {
                children.stop()?;
                return Err(Failure::new(Exit::Software, reason));
            }
        }
    }
}

/// Runs the process of one rank; rank 0 says when it is over.
fn run_rank(arguments: &LaunchArguments, allocation: &Allocation, signals: &Signals) -> Outcome {
    let options = MeetingOptions {
        size: arguments.size,
        ps: Some(arguments.ps),
        has_chief: arguments.chief,
        rendezvous: arguments.rendezvous.clone(),
        timeout: arguments.timeout,
        restarts: Some(arguments.restarts),
    };
    let mut meeting = signals.ending_at_once(
        |signal| process::exit(signal.exit_code()),
        || Meeting::hold(allocation, &options),
    )?;
    let folder = Folder::make(&meeting.plan, false)?;
    let child = child(arguments, &folder, &meeting.plan, meeting.rank);
    let outcome = follow(arguments, child, &meeting, signals);
    drop(meeting.member);
    if let Some(leader) = meeting.leader.take() {
        // The thread only tells others; if it panicked, they see that rank 0 is gone.
        let _ = leader.join();
    }
    outcome
}

fn follow(
    arguments: &LaunchArguments,
    child: Child,
    meeting: &Meeting,
    signals: &Signals,
) -> Outcome {
    let orders = meeting
        .member
        .orders()
        .or_exit_at(Exit::System, || "cannot listen to rank 0".to_owned())?;
    run_children(arguments, vec![child], |children| {
        obey(children, &orders, meeting, signals)
    })
}

fn obey(
    children: &mut Children,
    orders: &Receiver<Order>,
    meeting: &Meeting,
    signals: &Signals,
) -> Outcome {
    let mut restart = 0;
    loop {
        if let Some(signal) = signals.wait(Some(WATCH_INTERVAL)) {
            signal.ends_program();
            return Ok(children.stop()?);
        }
        // Where rank 0 is gone, reports fail, and there will be no orders either. The order may be
        // about this very end, which is reported first.
        for (_, end) in children.ended()? {
            let _ = meeting.member.report(restart, end);
        }
        match orders.try_recv() {
            Err(TryRecvError::Empty) => {}
            Ok(Order::Stop(number)) => {
                children.stop()?;
                let _ = meeting.member.report_stopped(number);
            }
            Ok(Order::Start(number)) => {
                restart = number;
                children.start_again()?;
            }
            Ok(Order::Finish) => return Ok(children.stop()?),
            Ok(Order::Fail(reason)) => {
                children.stop()?;
                return Err(Failure::new(Exit::Software, reason));
            }
            Err(TryRecvError::Disconnected) => {
                children.stop()?;
                return Err(Failure::new(
                    Exit::Unavailable,
                    "rank 0 is lost: its launcher hung up",
                ));
            }
        }
    }
}

/// Starts processes, lets `watch` look after them, and says which of their lines were lost.
fn run_children(
    arguments: &LaunchArguments,
    children: Vec<Child>,
    watch: impl FnOnce(&mut Children) -> Outcome,
) -> Outcome {
    let names: Vec<&str> = children.iter().map(|child| child.name.as_str()).collect();
    let lines = Arc::new(Lines::new(&names, arguments.output.as_deref())?);
    let sink = Arc::clone(&lines);
    let mut children = Children::start(children, move |line| sink.take(&line))?;
    let outcome = watch(&mut children);
    drop(children);
    lines.tell_losses();
    outcome
}

/// What a rank is started with, but for its CPUs.
fn child(arguments: &LaunchArguments, folder: &Folder, plan: &Plan, rank: u32) -> Child {
    let mut environment = folder.environment();
    environment.push(("TF_CONFIG".to_owned(), OsString::from(plan.tf_config(rank))));
    // TensorFlow's gRPC would dial the tasks through a proxy for the web, and wait for ever.
    let variable = |name: &str| std::env::var(name).ok();
    if let Some((name, hosts)) = proxies::exemption(plan.hosts(), variable) {
        environment.push((name.to_owned(), OsString::from(hosts)));
    }
    Child {
        rank,
        name: plan.roles().name(rank),
        command: arguments.command.clone(),
        environment,
        cpus: None,
    }
}

const LOOPBACK: std::net::IpAddr = std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
const WATCH_INTERVAL: Duration = Duration::from_millis(20);
