//! What clients do with streams, and when.

use std::time::Duration;

use fastrand::Rng;
use grpcxx_rpc::{Envelope, Metadata};

use super::{Ending, OpenStream, Reading, STREAM, StreamKind, StreamPlan};
use crate::service::StreamStart;
use crate::simulation::calls::{Kind, State};
use crate::simulation::cluster::{Cluster, Plan};
use crate::simulation::task::{SimTask, address_of};

impl Cluster {
    /// Begins a stream now and then, and gives one up.
    pub(in crate::simulation) fn operate_streams(&mut self) {
        if !self.profile.has_streams {
            return;
        }
        match self.streams.u32(..40) {
            0..=5 => self.begin_stream(),
            6 => self.give_up_stream(),
            _ => {}
        }
    }

    fn begin_stream(&mut self) {
        let running: Vec<usize> = (0..self.tasks.len())
            .filter(|&index| self.running(index).is_some())
            .collect();
        let random = &mut self.streams;
        let Some(caller) = random.choice(running) else {
            return;
        };
        let callee = random.usize(..self.tasks.len());
        let is_slow = self.profile.is_crumbling() || self.profile.links_fail;
        let plan = StreamPlan::draw(random, self.profile.tensor_bytes_max, is_slow);
        let timeout =
            (random.u32(..4) == 0).then(|| Duration::from_micros(random.u64(1..=200_000)));
        let given_up_in =
            (random.u32(..6) == 0).then(|| Duration::from_micros(random.u64(1..=20_000)));
        let epoch = self.watcher.model().tasks[callee].epoch;
        let address = address_of(callee, epoch).to_string();
        let Some(task) = &self.tasks[caller] else {
            return;
        };
        let client = task.client.clone();
        let Ok(peer) = client.peer_over(&address, 0) else {
            return;
        };
        let id = self.issue(caller, &peer, Kind::Stream(plan), timeout);
        let mut metadata = Metadata::default();
        let number = id.to_string();
        (metadata.insert(STREAM, number)).expect("it has room for a number");
        let path = match plan.kind {
            StreamKind::Tell => "/sim.Streams/Tell",
            StreamKind::Listen => "/sim.Streams/Listen",
            StreamKind::Talk => "/sim.Streams/Talk",
        };
        let envelope = Envelope::request(path, &metadata, 0).map(|writer| writer.finish());
        let begin = |envelope, timeout, ends| client.begin_stream(&peer, envelope, timeout, ends);
        let start = StreamStart::new(&begin, envelope, timeout);
        let open = OpenStream::new(plan, start);
        if let Some(task) = &mut self.tasks[caller] {
            task.streams.push((id, open));
        }
        if let Some(delay) = given_up_in {
            self.plan(delay, Plan::Drop(id));
        }
    }

    fn give_up_stream(&mut self) {
        let open: Vec<(usize, usize)> = (self.tasks.iter().enumerate())
            .flat_map(|(index, task)| {
                let streams = task.iter().flat_map(|task| &task.streams);
                streams.map(move |(id, _)| (index, *id))
            })
            .collect();
        if let Some((index, id)) = self.streams.choice(open)
            && let Some(task) = &mut self.tasks[index]
        {
            task.drop_stream(id);
        }
    }

    /// Lets clients go on with their streams.
    pub(in crate::simulation) fn poll_streams(&mut self) {
        for task in self.tasks.iter_mut().flatten() {
            task.poll_streams(&mut self.streams);
        }
        if let Some(fault) = self.watcher.model().streams.fault.take() {
            panic!("{fault}");
        }
    }

    /// Gives up the streams that cannot come to their end, and checks that all others have.
    pub(in crate::simulation) fn give_up_streams(&mut self) {
        for task in self.tasks.iter_mut().flatten() {
            let stuck: Vec<usize> = (task.streams.iter())
                .filter(|(_, open)| {
                    let plan = &open.plan;
                    plan.reading == Reading::Never || plan.ending == Ending::LeavesOpen
                })
                .map(|(id, _)| *id)
                .collect();
            for id in stuck {
                task.drop_stream(id);
            }
        }
    }
}

impl SimTask {
    /// Whether a client would go on with a stream at once.
    pub(in crate::simulation) fn has_busy_streams(&self) -> bool {
        self.streams.iter().any(|(_, open)| open.is_busy)
    }

    fn poll_streams(&mut self, random: &mut Rng) {
        let watcher = &self.watcher;
        self.streams.retain_mut(|(id, open)| {
            let Some(result) = open.poll(*id, watcher, random) else {
                return true;
            };
            watcher.model().finish_stream(*id, &open.plan, &result);
            false
        });
    }

    /// Reads all streams of a task that has stopped: each has an end.
    pub(in crate::simulation) fn end_streams(&mut self) {
        for (id, mut open) in std::mem::take(&mut self.streams) {
            let result = open.read(id, &self.watcher, usize::MAX);
            let Some(result) = result else {
                panic!(
                    "task {} has stopped, but its stream {id} has no end: {:?}",
                    self.index, open.plan
                );
            };
            self.watcher.model().finish_stream(id, &open.plan, &result);
        }
    }

    /// Gives up a stream by dropping its client's end, unless it has ended.
    pub(in crate::simulation) fn drop_stream(&mut self, id: usize) {
        let Some(index) = self.streams.iter().position(|(stream, _)| *stream == id) else {
            return;
        };
        let (_, open) = self.streams.swap_remove(index);
        let mut model = self.watcher.model();
        model.note(format_args!("stream {id} dropped"));
        model.calls.close(id, State::Dropped);
        drop(model);
        drop(open);
    }
}
