//! What `locum prune` prints.

use std::path::Path;

use locum::prune::{Constants, Export, Plan, Subject};
use serde_json::{Value, json};

use crate::output::bytes;

/// What was done, or would be.
pub(super) struct Report<'a> {
    pub(super) subject: &'a Subject,
    pub(super) plan: &'a Plan,
    pub(super) constants: &'a Constants,
    pub(super) export: &'a Export<'a>,
    /// Where the model was written; none of a dry run.
    pub(super) out: Option<&'a Path>,
}

impl Report<'_> {
    pub(super) fn json(&self) -> Value {
        let never_routed = self.constants.never_routed.iter();
        let layers = self.subject.layers().iter().zip(&self.plan.layers);
        let layers = layers.map(|(layer, planned)| {
            let here = layer.table.retained().len();
            json!({
                "layer": planned.layer,
                "logical": planned.num_logical_experts,
                "retained_before": here,
                "retained_after": here - planned.substituted.len(),
                "substituted": planned.ids().collect::<Vec<_>>(),
            })
        });
        // As they are shown: JSON has no other strings than Unicode, and file systems have.
        let shown = |path: &Path| path.display().to_string();
        let left_out = self.export.left_out().iter();
        json!({
            "model": shown(self.subject.directory()),
            "out": self.out.map(shown),
            "bytes_before": self.export.bytes_before(),
            "bytes_after": self.export.bytes_after(),
            "files": self.export.checkpoint().shards(),
            "layers": layers.collect::<Vec<_>>(),
            "never_routed": never_routed
                .map(|key| json!({ "layer": key.layer, "expert": key.expert }))
                .collect::<Vec<_>>(),
            "left_out": left_out.map(|left| shown(&left.path)).collect::<Vec<_>>(),
        })
    }

    pub(super) fn text(&self) -> String {
        let head = ["layer", "logical", "before", "after"].map(String::from);
        let layers = self.subject.layers().iter().zip(&self.plan.layers);
        let rows: Vec<([String; 4], String)> = layers
            .map(|(layer, planned)| {
                let here = layer.table.retained().len();
                let numbers = [
                    planned.layer as usize,
                    planned.num_logical_experts as usize,
                    here,
                    here - planned.substituted.len(),
                ];
                let ids: Vec<String> = planned.ids().map(|id| id.to_string()).collect();
                (numbers.map(|number| number.to_string()), ids.join(" "))
            })
            .collect();
        let width = |column: usize| {
            let cells = rows.iter().map(|(row, _)| row[column].len());
            cells.chain([head[column].len()]).max().unwrap_or(0)
        };
        let line = |cells: &[String; 4], ids: &str| {
            let cells = cells.iter().enumerate();
            let cells: Vec<String> = cells
                .map(|(column, cell)| format!("{cell:>0$}", width(column)))
                .collect();
            format!("{}  {ids}\n", cells.join("  "))
        };
        let mut text = line(&head, "experts that become constants");
        for (row, ids) in &rows {
            text.push_str(&line(row, ids));
        }
        let (before, after) = (self.export.bytes_before(), self.export.bytes_after());
        let files = self.export.checkpoint().shards();
        text.push_str(&format!(
            "\nweights {} before, {} after ({:.1} %), in {files} file{}\n",
            bytes(before),
            bytes(after),
            100.0 * after as f64 / before.max(1) as f64,
            if files == 1 { "" } else { "s" },
        ));
        let list = |what: &str, names: Vec<String>| match names.len() {
            0 => String::new(),
            _ => format!("{what}: {}\n", names.join(", ")),
        };
        let never = self.constants.never_routed.iter();
        text.push_str(&list(
            "never routed in calibration, so their constants are zero",
            never
                .map(|key| format!("layer {} expert {}", key.layer, key.expert))
                .collect(),
        ));
        let left = self.export.left_out().iter();
        text.push_str(&list(
            "not copied",
            left.map(|left| format!("{} ({})", left.path.display(), left.reason))
                .collect(),
        ));
        text.push_str(&match self.out {
            Some(out) => format!("written to {}\n", out.display()),
            None => "no model was written: this was a dry run\n".into(),
        });
        text
    }
}
