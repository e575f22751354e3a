//! The CPUs on which the ranks of a host may run. A launcher may have given each of them others.

use std::ops::Range;

use grpcxx_memory::Board;
use grpcxx_runtime::placement::{allowed_cpus, cpu_time};

use super::Boards;

/// Writes on the board of this rank where it may run.
pub(super) fn show_cpus(board: &Board) {
    for (word, cpus) in CPUS.zip(own_cpus()) {
        board.set_word(word, cpus);
    }
}

impl Boards {
    /// Whether there are fewer CPUs for the ranks, or less of their time, than ranks.
    pub(crate) fn are_crowded(&self) -> bool {
        let mut cpus = own_cpus();
        for neighbour in &self.neighbours {
            for (word, cpus) in CPUS.zip(&mut cpus) {
                *cpus |= neighbour.board.word_value(word);
            }
        }
        let all: u32 = cpus.iter().map(|word| word.count_ones()).sum();
        let own: u32 = own_cpus().iter().map(|word| word.count_ones()).sum();
        // A control group may hold all ranks.
        let is_held_back = cpu_time() < f64::from(own);
        let time = if is_held_back {
            cpu_time()
        } else {
            f64::INFINITY
        };
        let ranks = self.neighbours.len() + 1;
        f64::from(all).min(time) < ranks as f64
    }
}

/// A bit for each CPU on which this rank may run; those with larger numbers are left out.
fn own_cpus() -> [u64; CPUS.end - CPUS.start] {
    let mut words = [0; CPUS.end - CPUS.start];
    for &cpu in allowed_cpus().as_slice() {
        if let Some(word) = words.get_mut(cpu / 64) {
            *word |= 1 << (cpu % 64);
        }
    }
    words
}

/// The words with a bit for each CPU on which the owner may run.
const CPUS: Range<usize> = 2..32;
