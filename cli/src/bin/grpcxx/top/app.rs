//! What `top` shows and what its keys do, apart from any terminal.

use std::cmp::Reverse;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::detail;
use super::sample::{Rates, Sample};
use crate::output::{short, size};

/// All tasks, as far as they have told.
#[derive(Debug)]
pub(super) struct App {
    tasks: Vec<Shown>,
    /// Place in the order that is shown.
    pub(super) selected: usize,
    pub(super) sort: Sort,
    pub(super) is_paused: bool,
    pub(super) page: Page,
    /// Rows of the detail that are above the terminal.
    pub(super) scrolled: usize,
}

/// A task.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) name: String,
    pub(super) state: State,
    pub(super) rates: Option<Rates>,
    last: Option<Sample>,
}

/// Whether a task tells.
#[derive(Debug, PartialEq)]
pub(super) enum State {
    Asked,
    Up,
    /// It did not answer, for this reason.
    Away(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Tasks,
    Detail,
    Help,
}

/// By what the tasks are sorted; the first has the order of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Cluster,
    Requests,
    Latency,
    Cpu,
    Waiting,
}

impl Sort {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cluster => "cluster",
            Self::Requests => "calls",
            Self::Latency => "p99",
            Self::Cpu => "cpu",
            Self::Waiting => "waiting",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Cluster => Self::Requests,
            Self::Requests => Self::Latency,
            Self::Latency => Self::Cpu,
            Self::Cpu => Self::Waiting,
            Self::Waiting => Self::Cluster,
        }
    }
}

impl App {
    pub(super) fn new(names: impl IntoIterator<Item = String>) -> Self {
        let tasks = names.into_iter().map(|name| Shown {
            name,
            state: State::Asked,
            rates: None,
            last: None,
        });
        Self {
            tasks: tasks.collect(),
            selected: 0,
            sort: Sort::Cluster,
            is_paused: false,
            page: Page::Tasks,
            scrolled: 0,
        }
    }

    /// Takes what a task has told, or why it did not.
    pub(super) fn told(&mut self, task: usize, told: Result<Sample, String>) {
        if self.is_paused {
            return;
        }
        let task = &mut self.tasks[task];
        match told {
            Ok(sample) => {
                task.rates = task.last.as_ref().map(|last| sample.since(last));
                task.last = Some(sample);
                task.state = State::Up;
            }
            Err(why) => {
                (task.rates, task.last) = (None, None);
                task.state = State::Away(why);
            }
        }
    }

    /// The tasks in the order that is wanted.
    pub(super) fn sorted(&self) -> Vec<&Shown> {
        let mut tasks: Vec<&Shown> = self.tasks.iter().collect();
        let by = |number: fn(&Rates) -> f64| {
            move |a: &&Shown, b: &&Shown| {
                let number = |task: &Shown| task.rates.as_ref().map_or(-1.0, number);
                number(b).total_cmp(&number(a))
            }
        };
        match self.sort {
            Sort::Cluster => {}
            Sort::Requests => tasks.sort_by(by(|rates| {
                rates.requests_per_second + rates.calls_per_second
            })),
            Sort::Cpu => tasks.sort_by(by(|rates| rates.cpus)),
            Sort::Waiting => tasks.sort_by(by(|rates| rates.receives_waiting as f64)),
            Sort::Latency => {
                tasks.sort_by_key(|task| Reverse(task.rates.as_ref().and_then(Rates::p99_ns)));
            }
        }
        tasks
    }

    /// Does what a key says. Returns whether to go on.
    pub(super) fn pressed(&mut self, key: KeyEvent) -> bool {
        let is_ctrl_c = key.modifiers == KeyModifiers::CONTROL && key.code == KeyCode::Char('c');
        match key.code {
            _ if is_ctrl_c => return false,
            KeyCode::Char('q') => return false,
            KeyCode::Esc if self.page == Page::Tasks => return false,
            KeyCode::Esc => self.page = Page::Tasks,
            KeyCode::Char('?' | 'h') if self.page == Page::Help => self.page = Page::Tasks,
            KeyCode::Char('?' | 'h') => self.page = Page::Help,
            KeyCode::Enter if self.page == Page::Tasks => {
                (self.page, self.scrolled) = (Page::Detail, 0);
            }
            KeyCode::Enter => self.page = Page::Tasks,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Up | KeyCode::Char('k') => self.select(self.selected.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(self.selected + 1),
            KeyCode::PageUp | KeyCode::Char('b') => {
                self.scrolled = self.scrolled.saturating_sub(SCROLLED_ROWS);
            }
            KeyCode::PageDown | KeyCode::Char('f') => {
                let tasks = self.sorted();
                let rows = tasks
                    .get(self.selected)
                    .map(|task| detail::rows(task, 0).len());
                let last = rows.unwrap_or(0).saturating_sub(1);
                self.scrolled = (self.scrolled + SCROLLED_ROWS).min(last);
            }
            _ => {}
        }
        true
    }
}

impl App {
    fn select(&mut self, task: usize) {
        self.selected = task.min(self.tasks.len().saturating_sub(1));
        self.scrolled = 0;
    }
}

impl Shown {
    /// What stands in each column of [`COLUMNS`].
    pub(super) fn cells(&self) -> [String; COLUMNS.len()] {
        let mut cells = [(); COLUMNS.len()].map(|()| "-".to_owned());
        cells[0].clone_from(&self.name);
        cells[1] = match self.state {
            State::Asked => "...",
            State::Up => "up",
            State::Away(_) => "AWAY",
        }
        .to_owned();
        let Some(rates) = &self.rates else {
            return cells;
        };
        cells[2] = per_second(rates.requests_per_second);
        cells[3] = rates.p99_ns().map_or_else(|| "-".to_owned(), time);
        cells[4] = rates.receives_waiting.to_string();
        cells[5] = size(rates.received_bytes_per_second as u64);
        cells[6] = size(rates.sent_bytes_per_second as u64);
        cells[7] = per_second(rates.calls_per_second);
        cells[8] = per_second(rates.errors_per_second);
        cells[9] = percent(rates.cpus);
        cells[10] = size(rates.arena_used_bytes + rates.arena_beyond_bytes);
        cells[11] = size(rates.stored_bytes);
        let links = rates.links.iter().filter(|(_, count)| **count > 0);
        let links: Vec<String> = links
            .map(|(medium, count)| format!("{count} {medium}"))
            .collect();
        if !links.is_empty() {
            cells[12] = links.join(", ");
        }
        cells
    }
}

/// The columns of a task, the most important first; those whose name ends with `#` hold numbers.
pub(super) const COLUMNS: [&str; 13] = [
    "task", "state", "req/s#", "p99#", "wait#", "in/s#", "out/s#", "calls/s#", "err/s#", "cpu#",
    "arena#", "stored#", "links",
];

/// Rows by which a key scrolls the detail.
const SCROLLED_ROWS: usize = 10;

pub(super) fn per_second(rate: f64) -> String {
    match rate {
        ..10.0 => format!("{rate:.1}"),
        10.0..100_000.0 => format!("{rate:.0}"),
        100_000.0..1e8 => format!("{:.0}k", rate / 1e3),
        _ => format!("{:.0}M", rate / 1e6),
    }
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.0}%", 100.0 * share)
}

/// A time that is the end of a class of a histogram, whose last has none.
pub(super) fn time(ns: u64) -> String {
    match ns {
        u64::MAX => "longer".to_owned(),
        ns => short(ns),
    }
}
