use plotters::prelude::*;

use crate::{Cell, Failure, Sweep, bytes};

/// One line for each size: the time of a fused step to that of one without, by number of tensors.
pub(crate) fn draw(sweep: &Sweep, cells: &[Cell]) -> Result<String, Failure> {
    let most = sweep.counts.iter().max().copied().unwrap_or(1) as f64;
    let low = cells.iter().map(Cell::ratio).fold(1.0, f64::min) * 0.9;
    let high = cells.iter().map(Cell::ratio).fold(1.0, f64::max) * 1.1;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (900, 540)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(
                "Time of a fused step / of one without fusion",
                ("sans-serif", 18),
            )
            .margin(14)
            .x_label_area_size(48)
            .y_label_area_size(64)
            .build_cartesian_2d((1.0..most).log_scale(), (low..high).log_scale())?;
        chart
            .configure_mesh()
            .x_desc("tensors of a step")
            .y_desc("ratio")
            .x_label_formatter(&|count| format!("{count}"))
            .y_label_formatter(&|ratio| format!("{ratio:.2}"))
            .draw()?;
        for (index, &size) in sweep.sizes.iter().enumerate() {
            let color = Palette99::pick(index).stroke_width(2);
            let line = cells
                .iter()
                .filter(|cell| cell.size == size)
                .map(|cell| (cell.count as f64, cell.ratio()));
            chart
                .draw_series(LineSeries::new(line, color))?
                .label(bytes(size))
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], color));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}
