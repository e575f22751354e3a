use std::path::Path;

use hdrhistogram::Histogram;
use plotters::prelude::*;

use crate::terminal::{Exit, OrExit, Outcome};

/// A line of the plot.
pub(super) struct Curve<'a> {
    pub(super) name: String,
    /// Nanoseconds.
    pub(super) latency: &'a Histogram<u64>,
}

/// Draws times by percentile: from left to right ten times rarer with each mark, as HdrHistogram
/// plots are.
pub(super) fn write(path: &Path, title: &str, curves: &[Curve<'_>]) -> Outcome {
    let svg =
        draw(title, curves).or_exit_at(Exit::Software, || "cannot draw the plot".to_owned())?;
    std::fs::write(path, svg).or_exit_at(Exit::CannotCreate, || {
        format!("cannot write the plot {}", path.display())
    })
}

fn draw(title: &str, curves: &[Curve<'_>]) -> anyhow::Result<String> {
    let samples = curves.iter().map(|curve| curve.latency.len()).max();
    let rarest = samples.unwrap_or(1).max(10) as f64 * 2.0;
    let times = || {
        curves
            .iter()
            .flat_map(|curve| points(curve.latency))
            .map(|(_, us)| us)
    };
    let low = times().fold(f64::INFINITY, f64::min).clamp(0.01, 1e9) * 0.8;
    let high = times().fold(low * 2.0, f64::max) * 1.2;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (900, 540)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 18))
            .margin(14)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d((1.0..rarest).log_scale(), (low..high).log_scale())?;
        chart
            .configure_mesh()
            .x_desc("percentile")
            .y_desc("microseconds")
            .x_label_formatter(&|rarity| percentile(*rarity))
            .y_label_formatter(&|us| format!("{us}"))
            .draw()?;
        for (index, curve) in curves.iter().enumerate() {
            let color = Palette99::pick(index).stroke_width(2);
            chart
                .draw_series(LineSeries::new(points(curve.latency), color))?
                .label(curve.name.as_str())
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], color));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

/// One of how many steps takes longer, and how long, in microseconds.
fn points(latency: &Histogram<u64>) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    for value in latency.iter_quantiles(5) {
        let rarity = 1.0 / (1.0 - value.quantile_iterated_to()).max(1e-12);
        points.push((rarity, value.value_iterated_to() as f64 / 1e3));
        if rarity >= latency.len() as f64 {
            break;
        }
    }
    points
}

fn percentile(rarity: f64) -> String {
    format!("{}", ((1.0 - 1.0 / rarity) * 1e8).round() / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_named_and_times_ascend() {
        let names = [1.0, 10.0, 100.0, 1_000.0, 10_000.0].map(percentile);
        assert_eq!(names, ["0", "90", "99", "99.9", "99.99"]);
        let mut latency = Histogram::<u64>::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        for value in 1..=10_000_u64 {
            latency.record(value * 1000).unwrap();
        }
        let points = points(&latency);
        assert!(points.len() > 20);
        assert!(
            points
                .windows(2)
                .all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1)
        );
        let curve = Curve {
            name: "a curve".to_owned(),
            latency: &latency,
        };
        let svg = draw("a title", &[curve]).unwrap();
        for text in ["<svg", "a curve", "a title", "99.9", "percentile"] {
            assert!(svg.contains(text), "{text} is not in the plot");
        }
    }

    #[test]
    fn a_run_without_steps_is_an_empty_plot() {
        let latency = Histogram::<u64>::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        let curve = Curve {
            name: "nothing".to_owned(),
            latency: &latency,
        };
        assert!(draw("empty", &[curve]).unwrap().contains("</svg>"));
    }
}
