use std::time::Duration;

use crate::processes::{ClientProcess, ServerProcess};
use crate::{FEW_CONNECTIONS, FEW_DEPTH, Failure};

/// What all clients together saw.
pub(crate) struct Load {
    pub(crate) calls_per_second: f64,
    p99_us: Vec<f64>,
    silent: usize,
}

/// What very many connections cost before the first call.
pub(crate) struct Crowd {
    connections: usize,
    pub(crate) accepted: u64,
    connecting_seconds: f64,
    process_bytes_each: u64,
    sockets_bytes_each: u64,
}

/// Calls a second.
pub(crate) struct Rates {
    pub(crate) connections: usize,
    pub(crate) deep: f64,
    pub(crate) rounds: Vec<Round>,
}

/// Calls a second, each of engines and of bare sockets, in turn.
pub(crate) struct Round {
    pub(crate) few: [f64; 2],
    pub(crate) many: [f64; 2],
}

impl Load {
    /// Lets all clients begin at once, and adds up what they saw.
    pub(crate) fn collect(mut clients: Vec<ClientProcess>) -> Result<Self, Failure> {
        for client in &mut clients {
            client.go()?;
        }
        let mut load = Self {
            calls_per_second: 0.0,
            p99_us: Vec::new(),
            silent: 0,
        };
        for mut client in clients {
            let line = client.line()?;
            let mut words = line.split_whitespace();
            load.calls_per_second += words
                .next()
                .ok_or("a client said nothing")?
                .parse::<f64>()?;
            for word in words {
                match word.parse() {
                    Ok(us) => load.p99_us.push(us),
                    Err(_) => load.silent += 1,
                }
            }
        }
        Ok(load)
    }

    pub(crate) fn rows(&self) -> String {
        let median = median(self.p99_us.iter().copied());
        let worst = self.p99_us.iter().copied().fold(f64::NAN, f64::max);
        format!(
            "| p99 of the median connection, of the worst | {median:.0} us, {worst:.0} us |\n\
             | ratio | {:.2} |\n\
             | connections without a call | {} |\n",
            worst / median,
            self.silent,
        )
    }
}

impl Crowd {
    /// Connects to the server from all clients, and then lets them call.
    pub(crate) fn gather(
        server: &mut ServerProcess,
        connections: usize,
        duration: Duration,
    ) -> Result<(Self, Load), Failure> {
        let before = server.memory()?;
        let accepted_before = server.accepted()?;
        let mut clients = crate::start(server, connections, 1, duration)?;
        let mut connecting_seconds = 0.0_f64;
        for client in &mut clients {
            connecting_seconds = connecting_seconds.max(client.line()?.trim().parse()?);
        }
        let accepted = server.accepted()? - accepted_before;
        let idle = server.memory()?;
        let each = |after: u64, before: u64| after.saturating_sub(before) / accepted.max(1);
        let crowd = Self {
            connections,
            accepted,
            connecting_seconds,
            process_bytes_each: each(idle.process, before.process),
            sockets_bytes_each: each(idle.sockets, before.sockets),
        };
        Ok((crowd, Load::collect(clients)?))
    }

    pub(crate) fn rows(&self) -> String {
        let Self {
            connections,
            accepted,
            connecting_seconds,
            process_bytes_each,
            sockets_bytes_each,
        } = self;
        format!(
            "| connections asked for, accepted | {connections}, {accepted} |\n\
             | from the first to the last | {connecting_seconds:.2} s |\n\
             | memory of the process for each idle connection | {process_bytes_each} B |\n\
             | memory of the kernel's sockets for each (both ends) | {sockets_bytes_each} B |\n"
        )
    }
}

impl Rates {
    pub(crate) fn rows(&self) -> String {
        let Self {
            connections,
            deep,
            rounds,
        } = self;
        let of = |figure: fn(&Round) -> f64| median(rounds.iter().map(figure));
        let ratio_of = |ratio: fn(&Round) -> f64| {
            let ratios = || rounds.iter().map(ratio);
            let least = ratios().fold(f64::NAN, f64::min);
            let most = ratios().fold(f64::NAN, f64::max);
            format!("{:.2} ({least:.2} to {most:.2})", median(ratios()))
        };
        let (few, many) = (of(|round| round.few[0]), of(|round| round.many[0]));
        format!(
            "| 64 B calls, {FEW_CONNECTIONS} connections x 1 | {few:.0} /s |\n\
             | 64 B calls, {FEW_CONNECTIONS} connections x {FEW_DEPTH}, of which many share a read and a write | {deep:.0} /s |\n\
             | 64 B calls, {connections} connections x 1 | {many:.0} /s |\n\
             | ratio to {FEW_CONNECTIONS} x 1 | {} |\n\
             | bare sockets, {FEW_CONNECTIONS} x 1, {connections} x 1 | {:.0} /s, {:.0} /s |\n\
             | ratio | {} |\n\
             | ours to bare sockets, {FEW_CONNECTIONS} x 1 | {} |\n\
             | ours to bare sockets, {connections} x 1 | {} |\n",
            ratio_of(|round| round.many[0] / round.few[0]),
            of(|round| round.few[1]),
            of(|round| round.many[1]),
            ratio_of(|round| round.many[1] / round.few[1]),
            ratio_of(|round| round.few[0] / round.few[1]),
            ratio_of(|round| round.many[0] / round.many[1]),
        )
    }
}

/// The one in the middle; not a number if there is none.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
