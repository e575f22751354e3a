//! The table.

use crate::meter::median;

/// One line of the table.
pub(crate) struct Row {
    name: String,
    unit: &'static str,
    ours: f64,
    baseline: Option<Baseline>,
    target: Option<Target>,
    quiet: Option<f64>,
}

struct Baseline {
    name: &'static str,
    value: f64,
    ratio: f64,
}

/// What a figure, or the ratio where there is one, has to be.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Row {
    /// A figure of its own: the median of the rounds.
    pub(crate) fn plain(name: impl Into<String>, unit: &'static str, ours: Vec<f64>) -> Self {
        Self {
            name: name.into(),
            unit,
            ours: median(ours),
            baseline: None,
            target: None,
            quiet: None,
        }
    }

    /// A figure beside a baseline; the ratio is the median of the rounds' ratios.
    pub(crate) fn beside(self, name: &'static str, ours: &[f64], baseline: &[f64]) -> Self {
        let ratios = ours.iter().zip(baseline).map(|(a, b)| a / b).collect();
        Self {
            baseline: Some(Baseline {
                name,
                value: median(baseline.to_vec()),
                ratio: median(ratios),
            }),
            ..self
        }
    }

    /// Gives the baseline another name.
    pub(crate) fn against(self, name: &'static str) -> Self {
        let baseline = self.baseline.map(|baseline| Baseline { name, ..baseline });
        Self { baseline, ..self }
    }

    pub(crate) fn target(self, target: Target) -> Self {
        Self {
            target: Some(target),
            ..self
        }
    }

    /// Share of the time in which no other process took a CPU, over all rounds.
    pub(crate) fn quiet(self, shares: Vec<f64>) -> Self {
        let mean = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
        Self {
            quiet: Some(mean),
            ..self
        }
    }

    fn verdict(&self) -> String {
        let value = self.baseline.as_ref().map_or(self.ours, |b| b.ratio);
        match self.target {
            None => String::new(),
            Some(Target::AtMost(limit)) if value <= limit => format!("<= {limit} met"),
            Some(Target::AtLeast(limit)) if value >= limit => format!(">= {limit} met"),
            Some(Target::AtMost(limit)) => format!("<= {limit} MISSED"),
            Some(Target::AtLeast(limit)) => format!(">= {limit} MISSED"),
        }
    }

    pub(crate) fn print(&self) {
        // What is not nothing shall not look like it.
        let digits = if (0.0..0.005).contains(&self.ours.abs()) && self.ours != 0.0 {
            6
        } else {
            2
        };
        let figure = format!("{:.digits$} {}", self.ours, self.unit);
        let (baseline, ratio) = match &self.baseline {
            Some(b) => (
                format!("{} {:.2}", b.name, b.value),
                format!("{:.2}", b.ratio),
            ),
            None => Default::default(),
        };
        let quiet = self
            .quiet
            .map_or(String::new(), |quiet| format!("{:.0} %", quiet * 100.0));
        line([
            &self.name,
            &figure,
            &baseline,
            &ratio,
            &self.verdict(),
            &quiet,
        ]);
    }
}

pub(crate) fn print_head() {
    line(["what", "ours", "baseline", "ratio", "target", "quiet"]);
    line(["---", "---", "---", "---", "---", "---"]);
}

fn line([what, ours, baseline, ratio, target, quiet]: [&str; 6]) {
    println!(
        "| {what:<42} | {ours:>16} | {baseline:>14} | {ratio:>5} | {target:<15} | {quiet:>5} |"
    );
}
