//! The whole curve, as a table and as a plot.

use std::error::Error;
use std::fmt::Write as _;

use plotters::prelude::*;

use super::{GRPC, OURS, Point, simulate};

pub(super) fn write() -> Result<(), Box<dyn Error>> {
    let mut curves = Vec::new();
    for costs in [OURS, GRPC] {
        let mut points = Vec::new();
        for workers in WORKERS {
            let point = simulate(costs, workers, 1.0);
            points.push(point);
        }
        curves.push((costs.name, points));
    }
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    std::fs::write(format!("{root}/docs/scale.svg"), draw(&curves)?)?;
    let path = format!("{root}/docs/scaling.md");
    let document = std::fs::read_to_string(&path)?;
    let (before, rest) = document.split_once(BEGIN).ok_or("no begin mark")?;
    let (_, after) = rest.split_once(END).ok_or("no end mark")?;
    std::fs::write(
        path,
        format!("{before}{BEGIN}\n{}{END}{after}", table(&curves)?),
    )?;
    Ok(())
}

fn table(curves: &[(&str, Vec<Point>)]) -> Result<String, std::fmt::Error> {
    let mut text = String::from("| workers |");
    for (name, _) in curves {
        write!(text, " {name}: steps/s | wait at the server | step |")?;
    }
    writeln!(text, "\n|---:|{}", "---:|".repeat(3 * curves.len()))?;
    for index in 0..WORKERS.len() {
        write!(text, "| {} |", WORKERS[index])?;
        for (_, points) in curves {
            let point = points[index];
            write!(
                text,
                " {:.0} | {:.2} ms | {:.1} ms |",
                point.steps_per_second,
                point.waited.as_secs_f64() * 1e3,
                point.step.as_secs_f64() * 1e3
            )?;
        }
        text.push('\n');
    }
    Ok(text)
}

fn draw(curves: &[(&str, Vec<Point>)]) -> Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, (900, 900)).into_drawing_area();
    area.fill(&WHITE)?;
    let (above, below) = area.split_vertically(450);
    panel(&above, "steps per second", curves, |point| {
        point.steps_per_second
    })?;
    panel(
        &below,
        "wait of a request at the server, ms",
        curves,
        |point| (point.waited.as_secs_f64() * 1e3).max(1e-3),
    )?;
    area.present()?;
    drop((above, below, area));
    Ok(svg)
}

fn panel<B: DrawingBackend>(
    area: &DrawingArea<B, plotters::coord::Shift>,
    title: &str,
    curves: &[(&str, Vec<Point>)],
    value: impl Fn(&Point) -> f64,
) -> Result<(), Box<dyn Error>>
where
    B::ErrorType: 'static,
{
    let values = || curves.iter().flat_map(|(_, points)| points).map(&value);
    let low = values().fold(f64::INFINITY, f64::min) * 0.8;
    let high = values().fold(low * 2.0, f64::max) * 1.3;
    let most = WORKERS[WORKERS.len() - 1] as f64;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(14)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d((1.0..most).log_scale(), (low..high).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("workers")
        .x_label_formatter(&|workers| format!("{workers}"))
        .y_label_formatter(&|value| format!("{value}"))
        .draw()?;
    for (index, (name, points)) in curves.iter().enumerate() {
        let color = Palette99::pick(index).stroke_width(2);
        let line = points
            .iter()
            .map(|point| (point.workers as f64, value(point)));
        chart
            .draw_series(LineSeries::new(line, color))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], color));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}

const WORKERS: [usize; 11] = [1, 3, 10, 30, 100, 300, 1_000, 2_000, 3_000, 6_000, 10_000];
const BEGIN: &str = "<!-- curve:begin -->";
const END: &str = "<!-- curve:end -->";
