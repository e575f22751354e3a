use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use grpcxx_rdma::sim::SimFabric;
use grpcxx_transport::Time;
use grpcxx_transport::sim::SimNetwork;

use super::functions::answer_late;
use super::hostile::Hostile;
use super::model::{TaskRecord, Watcher};
use super::profile::Profile;
use super::pushes::Pushes;
use super::task::{SimShard, SimTask, host_of};

/// A cluster of one seed: its tasks, the network between them, and the model that all is held
/// against.
pub(super) struct Cluster {
    pub(super) seed: u64,
    pub(super) profile: Profile,
    pub(super) random: Rng,
    /// Decides on all of streams, so that it draws nothing of what others do.
    pub(super) streams: Rng,
    pub(super) pushes: Pushes,
    pub(super) network: SimNetwork,
    /// What joins the devices of tasks, if they have any.
    pub(super) fabric: Option<SimFabric>,
    pub(super) watcher: Watcher,
    pub(super) hostile: Hostile,
    pub(super) tasks: Vec<Option<SimTask>>,
    pub(super) now: Time,
    plans: BTreeMap<(Time, u64), Plan>,
    plans_made: u64,
    pub(super) runs_started: u64,
}

/// What happens at a set time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Plan {
    /// A tensor is put into its step.
    Offer(usize),
    Drop(usize),
    Start(usize),
    Heal(usize, usize),
}

impl Cluster {
    pub(super) fn new(seed: u64, lines_max: usize) -> Self {
        let mut random = Rng::with_seed(seed);
        let mut streams = Rng::with_seed(seed ^ STREAMS_SEED);
        let mut profile = Profile::draw(seed, &mut random);
        profile.has_streams = streams.u32(..3) == 1;
        let mut pushes = Pushes::new(seed);
        (profile.staged_patience, profile.staged_life) = pushes.draw_times();
        let watcher = Watcher::new(&profile, lines_max);
        let network = SimNetwork::new(profile.network.clone());
        let mut cluster = Self {
            seed,
            hostile: Hostile::new(&network),
            network,
            fabric: (profile.rdma.as_ref()).map(|rdma| SimFabric::new(rdma.fabric.clone())),
            tasks: Vec::new(),
            now: Time::ZERO,
            plans: BTreeMap::new(),
            plans_made: 0,
            runs_started: 0,
            watcher,
            random,
            streams,
            pushes,
            profile,
        };
        for index in 0..cluster.profile.tasks {
            let announces = cluster.random.u32(..3) > 0;
            cluster.watcher.model().tasks.push(TaskRecord {
                announces,
                epoch: 0,
                is_running: false,
                was_disturbed: false,
                incarnations: Vec::new(),
            });
            cluster.tasks.push(None);
            cluster.start(index);
        }
        cluster
    }

    /// Lets time pass until `until`.
    pub(super) fn run_until(&mut self, until: Time) {
        while self.now < until {
            self.step(until);
        }
    }

    /// Lets time pass until `is_done`, but not much longer than `patience`.
    pub(super) fn run_while(
        &mut self,
        patience: Duration,
        mut is_waiting: impl FnMut(&Self) -> bool,
    ) -> bool {
        let until = self.now + patience;
        while is_waiting(self) {
            if self.now >= until {
                return false;
            }
            self.step(until);
        }
        true
    }

    pub(super) fn plan(&mut self, delay: Duration, plan: Plan) {
        self.plans_made += 1;
        self.plans.insert((self.now + delay, self.plans_made), plan);
    }

    pub(super) fn has_plans(&self) -> bool {
        !self.plans.is_empty()
    }

    pub(super) fn note(&self, what: std::fmt::Arguments<'_>) {
        self.watcher.model().note(what);
    }

    /// A task that runs, at random.
    pub(super) fn any_running(&mut self) -> Option<usize> {
        let running: Vec<usize> = (0..self.tasks.len())
            .filter(|&index| self.running(index).is_some())
            .collect();
        self.random.choice(running)
    }

    /// A task that can make calls, at random; it may be about to stop.
    pub(super) fn any_caller(&mut self) -> Option<usize> {
        if self.random.u32(..8) > 0 {
            return self.any_running();
        }
        let present: Vec<usize> = (0..self.tasks.len())
            .filter(|&index| self.tasks[index].is_some())
            .collect();
        self.random.choice(present)
    }

    /// The task, if it runs and was not told to stop.
    pub(super) fn running(&self, index: usize) -> Option<&SimTask> {
        self.tasks[index]
            .as_ref()
            .filter(|task| task.stop_by.is_none())
    }

    /// One round: time moves to the next event and a little further, and all to whom something
    /// happened get their turn, in any order.
    fn step(&mut self, until: Time) {
        let due = self.next_due().map_or(until, |at| at.min(until));
        let slack_ns = self.random.u64(1..=self.profile.slack.as_nanos() as u64);
        self.now = self.now.max(due) + Duration::from_nanos(slack_ns);
        self.watcher.model().now = self.now;
        self.break_devices();
        self.turn_shards();
        self.hostile.turn(self.now);
        self.run_jobs();
        self.carry_out_plans();
        for task in self.tasks.iter_mut().flatten() {
            task.poll_calls();
        }
        self.poll_streams();
        self.bury_stopped();
    }

    fn next_due(&self) -> Option<Time> {
        let tasks = || self.tasks.iter().flatten();
        if tasks().any(|task| task.jobs.len() > 0 || task.has_busy_streams()) {
            return Some(self.now);
        }
        let timeouts = tasks()
            .flat_map(|task| &task.shards)
            .filter_map(SimShard::next_timeout);
        let plan = self.plans.keys().next().map(|&(at, _)| at);
        let devices = tasks()
            .flat_map(|task| &task.shards)
            .filter_map(|shard| device_event_at(shard, self.now, DEVICE_CHECK));
        let fabric = self.fabric.as_ref().and_then(SimFabric::next_request_at);
        timeouts
            .chain(plan)
            .chain(devices)
            .chain(fabric)
            .chain(self.network.next_event_at())
            .chain(self.hostile.next_event_at())
            .min()
    }

    /// Lets something befall a device now and then.
    fn break_devices(&mut self) {
        let Some(rdma) = &self.profile.rdma else {
            return;
        };
        if rdma.fault_chance == 0.0 || self.random.f64() >= rdma.fault_chance {
            return;
        }
        let (Some(index), kind) = (self.any_caller(), self.random.u32(..4)) else {
            return;
        };
        let Some(task) = &mut self.tasks[index] else {
            return;
        };
        let shard = self.random.usize(..task.shards.len());
        let links = task.shards[shard].transport_mut().inner_mut().inner_mut();
        let Some(medium) = links.inner_mut().medium_mut() else {
            return;
        };
        let links = medium.links_mut();
        let what = match kind {
            0 => {
                links.adapter_mut().remove();
                "is removed"
            }
            1 => {
                links.adapter_mut().overrun();
                "loses completions"
            }
            _ => {
                links.adapter_mut().revoke_all();
                "forgets its memory"
            }
        };
        self.note(format_args!("the device of task {index} {what}"));
    }

    fn turn_shards(&mut self) {
        let now = self.now;
        self.network.advance(now);
        if let Some(fabric) = &self.fabric {
            fabric.advance(now);
        }
        let mut order: Vec<(usize, usize)> = (self.tasks.iter().enumerate())
            .flat_map(|(index, task)| {
                let shards = task.as_ref().map_or(0, |task| task.shards.len());
                (0..shards).map(move |shard| (index, shard))
            })
            .collect();
        self.random.shuffle(&mut order);
        for (index, shard) in order {
            let Some(task) = &mut self.tasks[index] else {
                continue;
            };
            let shard = &mut task.shards[shard];
            // Only then would its host wake it.
            let is_due = next_event_at(shard, now).is_some_and(|at| at <= now);
            if !is_due || shard.is_finished() || self.random.u32(..8) == 0 {
                continue;
            }
            let events = shard.turn(now);
            assert!(
                events <= TURN_EVENTS_MAX,
                "a turn of task {index} had {events} events"
            );
        }
    }

    /// Runs some of the functions and late answers that wait.
    fn run_jobs(&mut self) {
        for task in self.tasks.iter().flatten() {
            while task.jobs.len() > 0 && self.random.bool() {
                let job = task.jobs.take(self.random.usize(..task.jobs.len()));
                job.run();
            }
            if self.random.u32(..8) == 0
                && let Some(late) = task.late.take()
            {
                if self.random.u32(..8) == 0 {
                    let mut model = self.watcher.model();
                    model.calls.record_mut(late.call).is_responder_dropped = true;
                    drop(model);
                    drop(late);
                } else {
                    answer_late(late);
                }
            }
        }
    }

    fn carry_out_plans(&mut self) {
        while let Some(entry) = self.plans.first_entry()
            && entry.key().0 <= self.now
        {
            match entry.remove() {
                Plan::Offer(id) => self.offer(id),
                Plan::Drop(id) => self.drop_call(id),
                Plan::Start(index) => self.start(index),
                Plan::Heal(one, other) => {
                    self.note(format_args!("{one} and {other} reach each other again"));
                    self.network.heal(host_of(one), host_of(other));
                }
            }
        }
    }

    fn drop_call(&mut self, id: usize) {
        for task in self.tasks.iter_mut().flatten() {
            task.drop_call(id);
            task.drop_stream(id);
        }
    }
}

/// When a shard would be woken: by its links, or by itself.
fn next_event_at(shard: &mut SimShard, now: Time) -> Option<Time> {
    let device = device_event_at(shard, now, Duration::ZERO);
    let faults = shard.transport_mut().inner_mut().inner_mut();
    let stalled_until = faults.stalled_until();
    let links = faults.inner_mut().base().next_event_at();
    let links = links.into_iter().chain(device).min();
    let links = links.map(|at| at.max(stalled_until));
    links.into_iter().chain(shard.next_timeout()).min()
}

/// When a shard would be woken by its device, or looks at it by itself after `check`.
fn device_event_at(shard: &SimShard, now: Time, check: Duration) -> Option<Time> {
    let migrating = shard.transport().inner().inner().inner();
    let links = migrating.medium()?.links();
    if migrating.is_waiting() {
        return Some(now + check);
    }
    if links.has_work() || links.adapter().has_events() {
        return Some(now);
    }
    links.patience().map(|_| now + check)
}

/// Most events of one turn: those of its links, and a bounded number of commands.
const TURN_EVENTS_MAX: usize = 4096;

/// Makes another seed of a seed.
const STREAMS_SEED: u64 = 0x73_7472_6561_6d73;

/// How often links are looked at that a clock moves on.
const DEVICE_CHECK: Duration = Duration::from_micros(500);
