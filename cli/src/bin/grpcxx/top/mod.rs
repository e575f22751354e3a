//! `grpcxx top`: the tasks of a cluster at a terminal, refreshed until somebody leaves it.

mod app;
mod detail;
mod sample;
mod view;

use std::io::{IsTerminal, stdin, stdout};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use grpcxx::server::server_metrics;
use grpcxx_runtime::Client;
use grpcxx_runtime::config::Config;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use serde::Serialize;

use crate::arguments::TopArguments;
use crate::cluster::{Cluster, Task};
use crate::output::{Output, Table};
use crate::terminal::{Exit, Failure, OrExit, Outcome, Signals};
use app::{App, COLUMNS, State};
use sample::{Rates, Sample};

/// What a task has told, or why not, by its place.
type Told = (usize, Result<Sample, String>);

#[derive(Serialize)]
struct TaskRow<'a> {
    task: &'a str,
    is_up: bool,
    error: Option<&'a str>,
    rates: Option<&'a Rates>,
}

/// Shows the tasks until a key or a signal ends it; once, where nobody could read a refresh.
pub(crate) fn run(arguments: &TopArguments, config: &Config, output: Output) -> Outcome {
    let cluster = Cluster::connect(&arguments.target, config)?;
    let mut tasks = Vec::new();
    for name in &arguments.tasks {
        tasks.push(cluster.tasks()[cluster.task(name)?].clone());
    }
    if tasks.is_empty() {
        tasks = cluster.tasks().to_vec();
    }
    let mut app = App::new(tasks.iter().map(|task| task.name.clone()));
    let told = ask(cluster.client(), tasks, arguments)?;
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let is_seen = stdout().is_terminal() && stdin().is_terminal() && !is_dumb;
    if arguments.once || output.is_json() || !is_seen {
        return once(&mut app, &told, output);
    }
    show(&mut app, &told)
}

/// Asks each task again and again, so that one that is away holds up nobody. It ends with who
/// listens.
fn ask(client: Client, tasks: Vec<Task>, arguments: &TopArguments) -> Outcome<Receiver<Told>> {
    let (tell, told) = sync_channel(tasks.len().max(1));
    let (interval, timeout) = (
        arguments.interval,
        arguments.target.timeout.min(TIMEOUT_MAX),
    );
    for (index, task) in tasks.into_iter().enumerate() {
        let (client, tell) = (client.clone(), tell.clone());
        thread::Builder::new()
            .name(format!("ask {index}"))
            .spawn(move || ask_one(&client, &task, index, &tell, interval, timeout))
            .or_exit_at(Exit::System, || {
                "cannot start a thread for a task".to_owned()
            })?;
    }
    Ok(told)
}

fn ask_one(
    client: &Client,
    task: &Task,
    index: usize,
    tell: &SyncSender<Told>,
    interval: Duration,
    timeout: Duration,
) {
    loop {
        let asked = Instant::now();
        let answer = client
            .peer(&task.star)
            .and_then(|peer| server_metrics(client, &peer, Some(timeout)));
        let sample = match answer {
            Ok(text) => Ok(Sample::parse(&text, Instant::now())),
            Err(status) => Err(status.to_string()),
        };
        if tell.send((index, sample)).is_err() {
            return;
        }
        thread::sleep(interval.saturating_sub(asked.elapsed()));
    }
}

/// Prints one table, once each task has told twice or is away.
fn once(app: &mut App, told: &Receiver<Told>, output: Output) -> Outcome {
    let is_open = |app: &App| {
        let mut tasks = app.sorted().into_iter();
        tasks.any(|task| task.rates.is_none() && !matches!(task.state, State::Away(_)))
    };
    while is_open(app) && Signals::that_ends_program().is_none() {
        if let Ok((task, sample)) = told.recv_timeout(KEY_WAIT) {
            app.told(task, sample);
        }
    }
    let tasks = app.sorted();
    let rows = tasks.iter().map(|task| TaskRow {
        task: &task.name,
        is_up: task.state == State::Up,
        error: match &task.state {
            State::Away(why) => Some(why.as_str()),
            State::Asked | State::Up => None,
        },
        rates: task.rates.as_ref(),
    });
    let text = || {
        let mut table = Table::new(&COLUMNS);
        let mut errors = String::new();
        for task in &tasks {
            table.row(task.cells());
            if let State::Away(why) = &task.state {
                errors.push_str(&format!("{} is away: {why}\n", task.name));
            }
        }
        format!("{table}{errors}")
    };
    output.print(&rows.collect::<Vec<_>>(), text)?;
    let mut away = tasks
        .iter()
        .filter(|task| task.state != State::Up)
        .peekable();
    if away.peek().is_none() {
        return Ok(());
    }
    let names: Vec<&str> = away.map(|task| task.name.as_str()).collect();
    let text = format!("not up: {}", names.join(", "));
    Err(Failure::new(Exit::Unavailable, text))
}

/// Refreshes the terminal, and leaves it as it was: at the end, and after a panic by the hook that
/// `try_init` sets.
fn show(app: &mut App, told: &Receiver<Told>) -> Outcome {
    let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let cannot = || "cannot use this terminal; try --once".to_owned();
    let mut terminal = ratatui::try_init().or_exit_at(Exit::InputOutput, cannot)?;
    let mut refresh = || {
        while Signals::that_ends_program().is_none() {
            for (task, sample) in told.try_iter() {
                app.told(task, sample);
            }
            terminal.draw(|frame| view::draw(app, has_colours, frame))?;
            if event::poll(KEY_WAIT)?
                && let Event::Key(key) = event::read()?
                && key.kind == KeyEventKind::Press
                && !app.pressed(key)
            {
                break;
            }
        }
        std::io::Result::Ok(())
    };
    let result = refresh();
    ratatui::restore();
    result.or_exit_at(Exit::InputOutput, cannot)
}

/// How long `top` waits for a key before it draws again.
const KEY_WAIT: Duration = Duration::from_millis(200);
/// Longest time after which a task that does not answer is away.
const TIMEOUT_MAX: Duration = Duration::from_secs(5);
