//! The end of a ring, with operations under way.

use std::time::{Duration, Instant};

use grpcxx_transport::SlotTable;

use super::UringDriver;
use super::operation::{self, Alarm, Kind};

/// Cancels all operations and waits until the kernel has let go of the memory that they use. Should
/// it not, the memory is given up for good rather than used by two.
pub(super) fn run(driver: &mut UringDriver) {
    let start = Instant::now();
    // What is queued must be submitted before it can be cancelled.
    let _ = driver.ring.enter();
    while driver.ring.operations() > 0 && start.elapsed() < PATIENCE {
        cancel_all(driver);
        while driver.ring.operations() > 0 && start.elapsed() < PATIENCE {
            let _ = driver.ring.wait(Some(WAIT));
            if !take_all(driver) {
                break;
            }
        }
    }
    let buffers = driver.buffers.take();
    if driver.ring.operations() == 0 {
        if let Some(buffers) = buffers {
            buffers.unmap(&mut driver.ring);
        }
        return;
    }
    tracing::error!(
        "{} operations did not end; the memory of {} links is given up for good",
        driver.ring.operations(),
        driver.core.links.len()
    );
    std::mem::forget(std::mem::replace(
        &mut driver.core.links,
        SlotTable::unlimited(),
    ));
    std::mem::forget(std::mem::replace(&mut driver.alarm, Alarm::new()));
}

fn cancel_all(driver: &mut UringDriver) {
    for slot in driver.core.links.slots() {
        let Some((_, link)) = driver.core.links.at(slot) else {
            continue;
        };
        link.io.cancels = 0;
        if link.io.has_operations() && !operation::cancel(&mut driver.ring, slot, &mut link.io) {
            // No room: what is there goes first, and the rest has its turn in the next round.
            let _ = driver.ring.enter();
            take_all(driver);
        }
    }
    let listeners = driver.core.listeners.iter().filter(|l| l.watched);
    let companions = driver.companions.iter().enumerate();
    let others = listeners
        .map(|l| (Kind::Listener, l.id.0))
        .chain(companions.map(|(index, _)| (Kind::Companion, index as u32)))
        .chain([Kind::WakeUp, Kind::Alarm, Kind::ReadySet].map(|kind| (kind, 0)));
    for (kind, index) in others {
        operation::cancel_one(&mut driver.ring, kind, index);
    }
}

/// Takes completions, and notes for each link what is complete. Says whether there were any.
fn take_all(driver: &mut UringDriver) -> bool {
    let mut any = false;
    loop {
        driver.batch.clear();
        driver.ring.take(&mut driver.batch);
        if driver.batch.is_empty() {
            return any;
        }
        any = true;
        for completion in &driver.batch {
            let (kind, subject) = operation::unmark(completion);
            let Some((_, link)) = driver.core.links.at(subject) else {
                continue;
            };
            match kind {
                Kind::Receive => (link.io.landing, link.io.staging) = (false, false),
                Kind::Send => link.io.sending = false,
                Kind::Dial => link.io.dialling = false,
                Kind::Cancel | Kind::Listener | Kind::WakeUp | Kind::Alarm => {}
                Kind::Companion | Kind::ReadySet => {}
            }
        }
    }
}

/// How long the kernel may take for all.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long to wait for the next completion before cancelling once more.
const WAIT: Duration = Duration::from_millis(20);
