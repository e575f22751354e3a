//! Draws what `top` shows, for terminals down to 40 columns.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Table, TableState, Wrap};

use super::app::{App, COLUMNS, Page, Shown, State};
use super::detail;
use crate::terminal::plain::plain;

/// Draws the whole terminal.
pub(super) fn draw(app: &App, has_colours: bool, frame: &mut Frame<'_>) {
    let rows = [
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ];
    let [title, body, keys] = Layout::vertical(rows).areas(frame.area());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let tasks = app.sorted();
    let away = tasks
        .iter()
        .filter(|task| matches!(task.state, State::Away(_)))
        .count();
    let mut text = format!("grpcxx top  {} tasks, {away} away", tasks.len());
    text.push_str(&format!("  by {}", app.sort.name()));
    if app.is_paused {
        text.push_str("  PAUSED");
    }
    frame.render_widget(Line::styled(text, bold), title);
    let selected = tasks.get(app.selected).copied();
    match (app.page, selected) {
        (Page::Help, _) => frame.render_widget(Paragraph::new(HELP), body),
        (Page::Detail, Some(task)) => {
            let rows = detail::rows(task, body.width);
            let shown = rows.get(app.scrolled..).unwrap_or_default();
            let detail = Paragraph::new(shown.join("\n")).wrap(Wrap { trim: false });
            frame.render_widget(detail, body);
        }
        (Page::Tasks | Page::Detail, _) => draw_tasks(app, &tasks, has_colours, body, frame),
    }
    let hint = "q quit  Enter detail  s sort  p pause  ? help";
    frame.render_widget(Line::raw(hint), keys);
}

fn draw_tasks(app: &App, tasks: &[&Shown], has_colours: bool, area: Rect, frame: &mut Frame<'_>) {
    let cells: Vec<_> = tasks.iter().map(|task| task.cells()).collect();
    let names = COLUMNS.map(|name| name.trim_end_matches('#'));
    let width = |column: usize| {
        let longest = cells
            .iter()
            .map(|cells| plain(&cells[column]).chars().count())
            .max();
        let longest = longest.unwrap_or(0).max(names[column].len());
        if column == 0 {
            longest.min(NAME_COLUMNS_MAX)
        } else {
            longest
        }
    };
    // Columns that do not fit are left out, the least important first.
    let mut used = 0;
    let widths: Vec<usize> = (0..COLUMNS.len())
        .map(width)
        .take_while(|width| {
            used += width + 1;
            used <= usize::from(area.width) + 1
        })
        .collect();
    let set = |text: &str, column: usize| {
        let (text, width) = (plain(text), widths[column]);
        match COLUMNS[column].ends_with('#') {
            true => format!("{text:>width$}"),
            false => text.into_owned(),
        }
    };
    let rows = tasks.iter().zip(&cells).map(|(task, cells)| {
        let row = Row::new((0..widths.len()).map(|column| set(&cells[column], column)));
        match task.state {
            State::Away(_) if has_colours => row.style(Style::new().fg(Color::Red)),
            _ => row,
        }
    });
    let header = Row::new((0..widths.len()).map(|column| set(names[column], column)));
    let constraints = widths.iter().map(|width| Constraint::Length(*width as u16));
    let table = Table::new(rows, constraints)
        .column_spacing(1)
        .header(header.style(Style::new().add_modifier(Modifier::UNDERLINED)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut state = TableState::new().with_selected(Some(app.selected));
    frame.render_stateful_widget(table, area, &mut state);
}

const HELP: &str = "\
q, Ctrl-C   end
Up, Down    select a task (also k, j)
Enter       detail of the task, and back
PgUp, PgDn  scroll it (also b, f)
s           sort: cluster, calls, p99,
            cpu, waiting
p, space    pause, and go on
?           this page, and back

req/s   requests answered
calls/s calls made
p99     of the slowest kind of calls:
        upper end of its class
wait    requests that wait for tensors
in, out bytes of star, by all links
cpu     of all shards; 100% is one CPU
In the detail, > is made, < answered.";

/// Most columns that a name takes.
const NAME_COLUMNS_MAX: usize = 24;

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    use super::*;
    use crate::top::sample::Sample;
    use crate::top::sample::tests::{AFTER, BEFORE};

    fn app() -> App {
        let mut app = App::new(["ps:0", "ps:1", "a\u{1b}[2J"].map(str::to_owned));
        let start = Instant::now();
        app.told(0, Ok(Sample::parse(BEFORE, start)));
        app.told(0, Ok(Sample::parse(AFTER, start + Duration::from_secs(2))));
        app.told(1, Err("no\u{1b}]0;x\u{7} answer".to_owned()));
        app
    }

    fn press(app: &mut App, key: char) -> bool {
        let code = if key == '\n' {
            KeyCode::Enter
        } else {
            KeyCode::Char(key)
        };
        app.pressed(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn drawn(app: &App, columns: u16, rows: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| draw(app, false, frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| {
            (0..columns)
                .map(|x| buffer[(x, y)].symbol())
                .collect::<String>()
        };
        (0..rows).map(|y| row(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn forty_columns_hold_what_counts() {
        let lines = drawn(&app(), 40, 6);
        assert_eq!(
            lines,
            [
                "grpcxx top  3 tasks, 1 away  by cluster",
                "task       state req/s     p99 wait",
                "ps:0       up      100 10.0 ms    2",
                "ps:1       AWAY      -       -    -",
                "a\\u{1b}[2J ...       -       -    -",
                "q quit  Enter detail  s sort  p pause  ?",
            ]
        );
    }

    #[test]
    fn a_wide_terminal_shows_all_columns() {
        let text = drawn(&app(), 120, 6).join("\n");
        for part in [
            "calls/s", "cpu", "50%", "3.2 MB", "3 shm", "1.0 kB", "2.0 MB",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn details_say_why_a_task_is_away_and_what_one_does() {
        let mut app = app();
        assert!(press(&mut app, '\n'));
        let text = drawn(&app, 60, 12).join("\n");
        for part in [
            "2 receives wait, the oldest 4.5 s",
            "arena 250.0 kB of 1.0 MB, 3.0 MB beyond",
            "< Ping",
            "1.0 ms",
            "10.0 ms",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        let narrow = drawn(&app, 40, 14);
        let row = "< Ping             100   1.0 ms  10.0 ms".to_owned();
        assert!(narrow.contains(&row), "{narrow:?}");
        for row in [
            "peers, bytes in and out per second",
            "< 10.0.0.7 shm 500 B 2.0 MB",
            "  Ping              20   1.0 ms   longer",
            "> ps:2222 tcp 0 B 4 B",
        ] {
            assert!(
                narrow.contains(&row.to_owned()),
                "{row} is not in {narrow:?}"
            );
        }
        for _ in 0..5 {
            press(&mut app, 'f');
        }
        let end = drawn(&app, 40, 14);
        assert_eq!(end[1], "What it waits for: grpcxx inspect");
        press(&mut app, 'b');
        assert_ne!(drawn(&app, 40, 14)[1], end[1]);
        assert!(press(&mut app, 'j'));
        let text = drawn(&app, 60, 12).join("\n");
        assert!(text.contains("away: no\\u{1b}]0;x\\u{7} answer"), "{text}");
    }

    #[test]
    fn keys_pause_sort_help_and_end() {
        let mut app = app();
        press(&mut app, 'p');
        app.told(0, Err("later".to_owned()));
        let text = drawn(&app, 60, 8).join("\n");
        assert!(text.contains("PAUSED") && text.contains("1 away"), "{text}");
        press(&mut app, 's');
        press(&mut app, '?');
        let text = drawn(&app, 40, 18).join("\n");
        assert!(
            text.contains("by calls") && text.contains("Ctrl-C"),
            "{text}"
        );
        assert!(!press(&mut app, 'q'));
        let ctrl_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert!(!app.pressed(ctrl_c));
    }

    #[test]
    fn any_size_can_be_drawn() {
        let mut app = app();
        for page in ['?', '?', '\n'] {
            press(&mut app, page);
            for (columns, rows) in [(1, 1), (3, 2), (40, 3), (300, 100)] {
                drawn(&app, columns, rows);
            }
        }
    }
}
